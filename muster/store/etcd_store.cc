// How it works: each operation is a request in JSON with keys and values in base64. add and
// compare_set read a key, decide by the rules of Table, and write on the condition that the key's
// revision is still the same; if it is not, they begin again. etcd's gateway cannot tell of changes
// in one answer, so get and wait ask again and again. All keys hang on one lease of the job, which
// each of its processes renews.
#include "muster/store/etcd_store.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/pauses.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/store/etcd_answers.h"
#include "muster/store/table.h"

namespace muster {

namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kLease{60};
constexpr std::chrono::seconds kRenewLease{15};
constexpr std::chrono::seconds kRenewAgain{1};  // after it failed
constexpr size_t kMostInTransaction = 100;      // etcd's own default is 128
constexpr int64_t kLongestLog = INT64_MAX / 2;  // entries

// The key after all keys that begin with `prefix`.
std::string end_of_prefix(std::string prefix) {
  prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

// etcd would refuse the request for a larger value.
void check_size(const std::string& value) {
  if (value.size() <= EtcdStore::kMaxValueBytes)
    return;
  const Strings texts = format_compared_bytes({EtcdStore::kMaxValueBytes, value.size()});
  throw invalid_argument("etcd: expected a value of at most ",
                         texts[0],
                         ", which is what it takes in one request, got ",
                         texts[1]);
}

// The lease's id is the same for every process of the job, and nobody else's: a positive number of
// 63 bits.
int64_t lease_of(const std::string& prefix) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  EVP_Digest(prefix.data(), prefix.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  uint64_t id = 0;
  for (const unsigned char byte : std::span(digest).first<sizeof(id)>())
    id = id << 8 | byte;
  return static_cast<int64_t>((id & INT64_MAX) | 1);
}

int64_t count_of(TimePoint at) {
  return at.time_since_epoch().count();
}

// The one key as all stores see it: their rules are those of Table.
Table table_with(const std::string& key, const std::optional<std::string>& value) {
  Table table;
  if (value)
    table.set(key, *value);
  return table;
}

}  // namespace

// The lease is the first request, so that a wrong address is told at once.
EtcdStore::EtcdStore(EtcdStoreOptions options)
    : options_(std::move(options)),
      http_(options_.http),
      prefix_(cat("muster/", options_.job, "/")),
      lease_(lease_of(prefix_)) {
  begin_lease();
}

// A new leader is elected within moments, so a server that does not answer is asked again. A
// request that was carried out and not answered may then be carried out twice: entries of logs
// differ, and counters may count once too often.
std::string EtcdStore::post(const std::string& path, const std::string& body) {
  if (count_of(Clock::now()) > lease_due_)
    keep_lease();
  const Deadline deadline(options_.patience);
  for (Pauses pauses;; pauses.wait(deadline)) {
    try {
      return http_.post(path, body);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable || deadline.passed())
        throw;
    }
  }
}

// Another process of the job may have made the lease before.
void EtcdStore::begin_lease() {
  try {
    http_.post("/v3/lease/grant", Json{{"TTL", kLease.count()}, {"ID", cat(lease_)}}.dump());
  } catch (const Error& error) {
    if (!has_text(error.message(), "already exists"))
      throw;
  }
  keep_lease();
}

// While the lease has time left it can be renewed later: a new leader is elected within it.
void EtcdStore::keep_lease() {
  const auto now = Clock::now();
  lease_due_ = count_of(now + kRenewLease);
  try {
    http_.post("/v3/lease/keepalive", Json{{"ID", cat(lease_)}}.dump());
    lease_ends_ = count_of(now + kLease);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable || count_of(Clock::now()) >= lease_ends_)
      throw;
    lease_due_ = count_of(Clock::now() + kRenewAgain);
    log_debug("etcd: the lease could not be renewed, trying again: ", error.message());
  }
}

// Any of the servers may have answered.
std::string EtcdStore::place() const {
  return join(options_.http.urls, ", ");
}

// A key that is absent has revision 0, on which a put can depend too.
EtcdFound EtcdStore::find(const std::string& key) {
  return read_etcd_range(post("/v3/kv/range", Json{{"key", to_base64(full(key))}}.dump()));
}

// A transaction of etcd: the puts are carried out if the key's revision is still this one.
bool EtcdStore::put_if_unchanged(const std::string& key,
                                 int64_t revision,
                                 const std::string& value,
                                 const std::string& also_key,
                                 const std::string& also_value) {
  const auto name = to_base64(full(key));
  const auto put_of = [&](const std::string& of_key, const std::string& of_value) {
    const Json put = {
        {"key", to_base64(full(of_key))}, {"value", to_base64(of_value)}, {"lease", cat(lease_)}};
    return Json{{"request_put", put}};
  };
  Json puts = Json::array({put_of(key, value)});
  if (!also_key.empty())
    puts.push_back(put_of(also_key, also_value));
  const Json body = {
      {"compare",
       {{{"key", name}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", cat(revision)}}}},
      {"success", puts}};
  return read_etcd_transaction(post("/v3/kv/txn", body.dump()));
}

// Nothing depends on the earlier value, so one request does.
void EtcdStore::set(const std::string& key, const std::string& value) {
  check_limits("set", key, value);
  check_size(value);
  post("/v3/kv/put",
       Json{{"key", to_base64(full(key))}, {"value", to_base64(value)}, {"lease", cat(lease_)}}
           .dump());
}

std::string EtcdStore::get(const std::string& key, milliseconds timeout) {
  check_limits("get", key);
  const Deadline deadline(bounded_timeout(timeout));
  for (Pauses pauses;; pauses.wait(deadline)) {
    if (auto found = find(key); found.value)
      return *found.value;
    if (deadline.passed())
      throw missing_keys_error("get", Table().describe_missing({key}), timeout, place());
  }
}

// Transactions of one operation that were not carried out. Where another process has changed the
// key, it is tried again at once, however often. Where nobody has, etcd does not do what it says.
class EtcdStore::Refusals {
 public:
  explicit Refusals(const EtcdStore& store) : store_(store), deadline_(store.options_.patience) {}

  // `revision`: the key's, for which it was refused. Blocking: a pause, if it is the last one's.
  // Throws: unavailable once it has been the same for the store's patience.
  void note(const std::string& key, int64_t revision) {
    if (std::exchange(last_, revision) != revision) {
      deadline_ = Deadline(store_.options_.patience);
      pauses_ = {};
      return;
    }
    if (deadline_.passed()) {
      throw unavailable("etcd: expected ",
                        store_.place(),
                        " to carry out a transaction on '",
                        printable(store_.full(key)),
                        "', which nobody else has changed, got none within ",
                        format_duration(store_.options_.patience),
                        "; see whether it is etcd 3.4 or later that listens there");
    }
    pauses_.wait(deadline_);
  }

 private:
  const EtcdStore& store_;
  std::optional<int64_t> last_;
  Deadline deadline_;
  Pauses pauses_;
};

// To add 0 to a counter that is there only reads it.
int64_t EtcdStore::add(const std::string& key, int64_t amount) {
  check_limits("add", key);
  for (Refusals refusals(*this);;) {
    const EtcdFound found = find(key);
    const int64_t sum = table_with(key, found.value).sum(key, amount);
    if (found.value && amount == 0)
      return sum;
    if (put_if_unchanged(key, found.revision, std::to_string(sum)))
      return sum;
    refusals.note(key, found.revision);
  }
}

// If the rules say that nothing is to be stored, what was read is the answer.
std::string EtcdStore::compare_set(const std::string& key,
                                   const std::string& expected,
                                   const std::string& desired) {
  check_limits("compare_set", key, expected);
  check_limits("compare_set", key, desired);
  check_size(desired);
  for (Refusals refusals(*this);;) {
    const EtcdFound found = find(key);
    const Table::Comparison comparison =
        table_with(key, found.value).compare(key, expected, desired);
    if (!comparison.store || put_if_unchanged(key, found.revision, desired))
      return comparison.result;
    refusals.note(key, found.revision);
  }
}

// The entry and the log's size are put in one step, so that neither outlives the other. A number
// that somebody else has taken leads to the next one, unless the entry there is this one: then an
// earlier request was carried out and not answered.
int64_t EtcdStore::append(const std::string& log, const std::string& entry) {
  check_limits("append", log_entry_key(log, INT64_MAX), entry);
  check_size(entry);
  const auto size = log_size_key(log);
  Refusals refusals(*this);
  const auto told = find(size).value.value_or("0");
  const int64_t before = parse_int(told).value_or(0);
  if (before >= kLongestLog)
    throw invalid_argument("append: expected a size at '",
                           printable(size),
                           "' to which 1 can be added, got ",
                           before,
                           "; delete that key, or use another --rdzv-id");
  for (int64_t number = before + 1;; ++number) {
    const auto key = log_entry_key(log, number);
    if (put_if_unchanged(key, 0, entry, size, std::to_string(number)))
      return number;
    const EtcdFound found = find(key);
    if (found.value == entry)
      return number;
    refusals.note(key, found.revision);
  }
}

// One transaction asks for as many keys as etcd takes in one.
StoreValues EtcdStore::values(const Strings& keys) {
  check_limits("values", keys);
  StoreValues values;
  for (size_t first = 0; first < keys.size(); first += kMostInTransaction) {
    const size_t end = std::min(first + kMostInTransaction, keys.size());
    Json gets = Json::array();
    for (size_t i = first; i < end; ++i)
      gets.push_back({{"request_range", {{"key", to_base64(full(keys[i]))}}}});
    append_all(values,
               read_etcd_values(post("/v3/kv/txn", Json{{"success", gets}}.dump()), end - first));
  }
  return values;
}

Strings EtcdStore::missing(const Strings& keys) {
  const auto found = values(keys);
  const auto absent = filtered_indices(keys.size(), [&](size_t i) { return !found[i]; });
  return mapped(absent, [&](size_t i) { return keys[i]; });
}

bool EtcdStore::check(const Strings& keys) {
  check_limits("check", keys);
  return missing(keys).empty();
}

void EtcdStore::wait(const Strings& keys, milliseconds timeout) {
  check_limits("wait", keys);
  const Deadline deadline(bounded_timeout(timeout));
  for (Pauses pauses;; pauses.wait(deadline)) {
    const auto absent = missing(keys);
    if (absent.empty())
      return;
    if (deadline.passed())
      throw missing_keys_error("wait", Table().describe_missing(absent), timeout, place());
  }
}

// etcd says how many keys it has deleted.
bool EtcdStore::remove(const std::string& key) {
  check_limits("remove", key);
  const Json body = {{"key", to_base64(full(key))}};
  return read_etcd_deleted(post("/v3/kv/deleterange", body.dump())) > 0;
}

// The job's keys are a range, of which etcd only counts.
int64_t EtcdStore::num_keys() {
  const Json body = {{"key", to_base64(prefix_)},
                     {"range_end", to_base64(end_of_prefix(prefix_))},
                     {"count_only", true}};
  return read_etcd_count(post("/v3/kv/range", body.dump()));
}

// It is asked once, at a job's end: keys that stay go with their lease.
void EtcdStore::remove_all() {
  http_.post(
      "/v3/kv/deleterange",
      Json{{"key", to_base64(prefix_)}, {"range_end", to_base64(end_of_prefix(prefix_))}}.dump());
}

}  // namespace muster
