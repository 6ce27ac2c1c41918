// What the two logs of a job need not keep: a job of weeks, whose hosts come and go, would fill its
// store. A coordinator that takes over needs the joins of those that are there, the last order to
// start and all that came after it. Every host that lives has read what is older than the silence.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/cluster/kept_entries.h"
#include "muster/cluster/messages.h"

namespace muster {

class LogHistory {
 public:
  // `kept`: how long an entry stays after it has lost its use.
  explicit LogHistory(milliseconds kept) : kept_(kept) {}

  // An entry has been read, or written: in the order of their numbers. `keys` hold the order.
  void note(int64_t number, const Report& report, TimePoint now);
  void note(const Order& order, Strings keys, TimePoint now);

  // The keys to remove now, oldest first; a few at a time, so that nobody has to wait.
  Strings take_due(TimePoint now);
  // Takes keys back that could not be removed: they stay the oldest, in their order.
  void put_back(std::span<const std::string> keys, TimePoint now);

  // Keys and values of the lists of the entries that stay, of both logs (kept_entries.h). None
  // while those that were taken last have nearly as few.
  std::vector<std::pair<std::string, std::string>> take_lists();

 private:
  struct Entry {
    std::string key;
    TimePoint due;
  };

  void forget_later(Strings& keys, TimePoint now);
  void forget_member(const std::string& id, TimePoint now);
  void note_kept(const std::string& key, bool is_kept);

  const milliseconds kept_;
  std::map<std::string, std::string> joins_;  // the keys of those that are there, by id
  Strings reports_;                           // keys since the last order to start
  Strings orders_;
  StringSet in_round_;  // ids
  Strings leaving_;     // ids of hosts that take no part in the next round
  std::deque<Entry> history_;
  std::map<std::string, KeptEntries> kept_entries_ = {{kReports, {}}, {kOrders, {}}};  // by log
  size_t taken_ = 0;  // entries, since the lists were taken
};

}  // namespace muster
