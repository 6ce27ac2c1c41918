// An order to start makes history of the orders and reports before it, and before these of the
// joins of hosts that have gone: whoever reads the logs in between sees no host that is not there.
#include "muster/cluster/log_history.h"

#include <optional>
#include <utility>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/store/store.h"

namespace muster {

namespace {

constexpr size_t kAtATime = 64;
// So many entries more than there are cost a successor no time.
constexpr size_t kFewEntries = 256;

// The number of the entry; nothing for another key, as that of a plan.
std::optional<int64_t> number_of(const std::string& key, const std::string& log) {
  const bool may_be_entry = key.starts_with(log + "/");
  return may_be_entry ? parse_int(key.substr(log.size() + 1)) : std::nullopt;
}

}  // namespace

// Keys of other things are passed over.
void LogHistory::note_kept(const std::string& key, bool is_kept) {
  for (auto& [log, entries] : kept_entries_) {
    const auto number = number_of(key, log);
    if (!number)
      continue;
    if (is_kept) {
      entries.add(*number);
    } else {
      entries.remove(*number);
      ++taken_;
    }
  }
}

void LogHistory::forget_later(Strings& keys, TimePoint now) {
  for (std::string& key : keys)
    history_.push_back({.key = std::move(key), .due = now + kept_});
  keys.clear();
}

// Its sign of life goes too.
void LogHistory::forget_member(const std::string& id, TimePoint now) {
  const auto join = joins_.extract(id);
  if (join.empty())
    return;
  Strings keys = {join.mapped(), sign_of_life_key(id)};
  forget_later(keys, now);
}

void LogHistory::note(int64_t number, const Report& report, TimePoint now) {
  const auto key = log_entry_key(kReports, number);
  note_kept(key, true);
  switch (report.kind) {
    case Report::Kind::join:
      joins_[report.from] = key;
      return;
    case Report::Kind::leave:
    case Report::Kind::lost:
      if (in_round_.contains(report.from)) {
        leaving_.push_back(report.from);
        reports_.push_back(key);
      } else {
        forget_member(report.from, now);
        history_.push_back({.key = key, .due = now + kept_});
      }
      return;
    case Report::Kind::ended:
      if (report.stopped_by != 0)
        leaving_.push_back(report.from);
      [[fallthrough]];
    case Report::Kind::failing:
    case Report::Kind::stop:
    case Report::Kind::signal:
      reports_.push_back(key);
  }
}

// A host of the round that goes, or is refused, is of the round until the next one starts: its join
// goes first then, and after it what was reported.
void LogHistory::note(const Order& order, Strings keys, TimePoint now) {
  if (order.kind == Order::Kind::refuse && !order.hosts.empty()) {
    if (in_round_.contains(order.hosts[0])) {
      leaving_.push_back(order.hosts[0]);
    } else {
      forget_member(order.hosts[0], now);
    }
  }
  if (order.kind == Order::Kind::start) {
    for (const auto& id : std::exchange(leaving_, {}))
      forget_member(id, now);
    forget_later(reports_, now);
    forget_later(orders_, now);
    in_round_ = {order.hosts.begin(), order.hosts.end()};
  }
  for (std::string& key : keys) {
    note_kept(key, true);
    orders_.push_back(std::move(key));
  }
}

Strings LogHistory::take_due(TimePoint now) {
  Strings keys;
  while (keys.size() < kAtATime && !history_.empty() && history_.front().due <= now) {
    keys.push_back(std::move(history_.front().key));
    note_kept(keys.back(), false);
    history_.pop_front();
  }
  return keys;
}

void LogHistory::put_back(std::span<const std::string> keys, TimePoint now) {
  const auto entries = mapped(keys, [&](const auto& key) { return Entry{.key = key, .due = now}; });
  history_.insert(history_.begin(), entries.begin(), entries.end());
  for (const auto& key : keys)
    note_kept(key, true);
}

// A list is as long as the entries that it names, so it is written anew when a share of them has
// gone.
std::vector<std::pair<std::string, std::string>> LogHistory::take_lists() {
  std::vector<std::pair<std::string, std::string>> lists;
  size_t kept = 0;
  for (const auto& [log, entries] : kept_entries_)
    kept += entries.size();
  if (taken_ < kFewEntries + kept / 4)
    return lists;
  taken_ = 0;
  for (const auto& [log, entries] : kept_entries_)
    lists.emplace_back(kept_entries_key(log), entries.to_text());
  return lists;
}

}  // namespace muster
