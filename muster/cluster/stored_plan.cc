// So that there are not as many keys as hosts, a few hosts share one, a bucket: which, follows from
// a host's id, as a host knows nothing else of its place. A bucket has a line for each of its
// hosts, the id and the ranks as JSON. The last bucket has what only the whole has.
#include "muster/cluster/stored_plan.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "muster/base/compress.h"
#include "muster/base/error.h"
#include "muster/base/fnv.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/launch/job_setup.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_part.h"

namespace muster {

namespace {

constexpr int kHostsInBucket = 4;     // about
constexpr size_t kKeysAtATime = 256;  // keys
constexpr int kMostPieces = 4096;     // of a value

// As all hosts reckon it.
int64_t bucket_of(const std::string& id, const StoredPlan& stored) {
  return fnv1a(id) % std::max<uint64_t>(1, stored.buckets);
}

// A value that is larger than what the store takes is in pieces, and the order says in how many.
Strings keys_of_bucket(const StoredPlan& stored, int64_t bucket) {
  const auto key = cat(stored.place, "/", bucket);
  const int pieces = find_or(stored.pieces, cat(bucket));
  if (pieces < 0 || pieces > kMostPieces)
    throw invalid_argument(
        "order: expected up to ", kMostPieces, " pieces of its plan, got ", pieces);
  if (pieces == 0)
    return {key};
  return mapped_indices(pieces, [&](int piece) { return cat(key, "/", piece); });
}

void write_bucket(Store& store, StoredPlan& stored, int64_t bucket, const std::string& text) {
  const auto value = packed(text);
  const size_t most = store.max_value_bytes();
  Strings pieces;
  for (size_t at = 0; at < value.size() || at == 0; at += most)
    pieces.push_back(value.substr(at, most));
  if (pieces.size() > 1)
    stored.pieces[cat(bucket)] = int_size(pieces);
  for (size_t i = 0; const std::string& key : keys_of_bucket(stored, bucket))
    store.set(key, pieces[i++]);
}

// Throws: as read_whole.
Strings read_values(Store& store, const Strings& keys) {
  Strings texts;
  for (auto value : store.values(keys)) {
    if (!value)
      throw Error(ErrorCode::timeout, "order: a part of its plan is not in the store any more");
    texts.push_back(std::move(*value));
  }
  return texts;
}

// The lines of a bucket whose values are these.
Strings lines_of(const Strings& values) {
  Strings lines = split(unpacked(join(values, "")), '\n');
  std::erase(lines, "");
  return lines;
}

// The lines of all buckets. Some hundred keys are read at once.
Strings all_lines(Store& store, const StoredPlan& stored) {
  Strings lines;
  for (int64_t bucket = 0; bucket <= stored.buckets;) {
    Strings keys;
    Indices ends;
    for (; bucket <= stored.buckets && keys.size() < kKeysAtATime; ++bucket) {
      append_all(keys, keys_of_bucket(stored, bucket));
      ends.push_back(keys.size());
    }
    const Strings values = read_values(store, keys);
    auto begin = values.begin();
    for (const size_t end : ends) {
      const auto next = std::next(values.begin(), end);
      append_all(lines, lines_of({begin, next}));
      begin = next;
    }
  }
  return lines;
}

// The notes of a plan are for people: only the first host shows them.
std::string text_of_rest(const Plan& plan) {
  const nlohmann::json json = {{"notes", plan.notes}, {"warnings", plan.warnings}};
  return json_text(json);
}

void read_rest(const std::string& text, Plan& plan) {
  try {
    const auto json = nlohmann::json::parse(text);
    json.at("notes").get_to(plan.notes);
    json.at("warnings").get_to(plan.warnings);
  } catch (const nlohmann::json::exception& error) {
    throw invalid_argument("order: expected the notes of its plan, got ", json_words(error.what()));
  }
}

// What the plan says of each host, in its order.
Strings texts_of_hosts(const Order& order) {
  Strings texts;
  int hosts_before = 0;
  int first_rank = 0;
  for (int index = 0; index < int_size(order.hosts); ++index) {
    const auto ranks = ranks_of_host(order.plan, index);
    const HostRanks host{.host_index = index,
                         .first_rank = first_rank,
                         .hosts_before = hosts_before,
                         .ranks = {ranks.begin(), ranks.end()}};
    hosts_before += host.ranks.empty() ? 0 : 1;
    first_rank += int_size(host.ranks);
    texts.push_back(host_ranks_to_json(host));
  }
  return texts;
}

// Equal plans have the same. `texts` are those of their hosts, in the plan's order.
std::string digest_of(const Strings& texts, const std::string& rest) {
  uint64_t hash = fnv1a(rest);
  for (const auto& text : texts)
    hash = fnv1a(text, hash);
  return cat(hash);
}

// A host as a line of a bucket has it.
struct StoredHost {
  std::string id{};
  std::string text{};
  HostRanks host{};
};

// Throws: as read_whole.
StoredHost host_from(const std::string& line) {
  const size_t end_of_id = std::min(line.find(" {"), line.size() - 1);
  StoredHost stored{.id = line.substr(0, end_of_id), .text = line.substr(end_of_id + 1)};
  stored.host = host_ranks_from_json(stored.text, cat("host ", stored.id));
  return stored;
}

// In the plan's order. Throws: invalid_argument where they are not all, or those of another plan.
std::vector<StoredHost> all_hosts(Store& store, const Order& order, std::string& rest) {
  Strings lines = all_lines(store, order.stored);
  if (!lines.empty()) {
    rest = std::move(lines.back());
    lines.pop_back();
  }
  std::vector<StoredHost> hosts = mapped(lines, host_from);
  std::ranges::sort(hosts, {}, [](const StoredHost& stored) { return stored.host.host_index; });
  const auto digest = digest_of(mapped(hosts, &StoredHost::text), rest);
  if (int_size(hosts) == order.num_hosts && digest == order.stored.digest)
    return hosts;
  throw invalid_argument("order: expected the plan of ",
                         plural(order.num_hosts, "host"),
                         " with the digest ",
                         order.stored.digest,
                         ", got ",
                         hosts.size(),
                         " with ",
                         digest);
}

}  // namespace

StoredPlan store_plan(Store& store, int64_t number, const Order& order) {
  StoredPlan stored{.place = cat("plan-", number, "-", make_uuid()),
                    .buckets = int_size(order.hosts) / kHostsInBucket + 1};
  const Strings texts = texts_of_hosts(order);
  Strings buckets(stored.buckets);
  for (size_t i = 0; const std::string& id : order.hosts)
    buckets[bucket_of(id, stored)] += cat("\n", id, " ", texts[i++]);
  buckets.push_back(text_of_rest(order.plan));
  stored.digest = digest_of(texts, buckets.back());
  for (int64_t i = 0; const std::string& text : buckets)
    write_bucket(store, stored, i++, text);
  return stored;
}

Strings keys_of(const StoredPlan& stored) {
  Strings keys;
  for (int64_t bucket = 0; !stored.place.empty() && bucket <= stored.buckets; ++bucket)
    append_all(keys, keys_of_bucket(stored, bucket));
  return keys;
}

Strings keys_of_part(const StoredPlan& stored, const std::string& id) {
  return keys_of_bucket(stored, bucket_of(id, stored));
}

// A host that the bucket does not know is a spare.
void read_part(Store& store, const std::string& id, Order& order) {
  if (!order.plan.part) {
    throw invalid_argument("order: expected the common part of a plan, got none");
  }
  order.plan.part->digest = order.stored.digest;
  for (const auto& line : lines_of(read_values(store, keys_of_part(order.stored, id)))) {
    if (!line.starts_with(id + " {"))
      continue;
    HostRanks host = host_from(line).host;
    order.host_index = host.host_index;
    order.plan.part->first_rank = host.first_rank;
    order.plan.part->hosts_before = host.hosts_before;
    order.plan.ranks = std::move(host.ranks);
  }
}

WholeRound read_whole(Store& store, const Order& order) {
  std::string rest;
  WholeRound whole{.plan = order.plan};
  whole.plan.part.reset();
  whole.plan.ranks.clear();
  for (StoredHost& stored : all_hosts(store, order, rest)) {
    whole.hosts.push_back(std::move(stored.id));
    std::ranges::move(stored.host.ranks, std::back_inserter(whole.plan.ranks));
  }
  read_rest(rest, whole.plan);
  return whole;
}

}  // namespace muster
