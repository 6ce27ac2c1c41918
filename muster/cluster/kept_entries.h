// Which entries of a log are there, once most of it is history: a successor reads these alone, and
// not what a job of weeks has forgotten. The list lies beside the log. An old one does no harm: it
// names entries that are gone by now, and leaves out none that is of use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "muster/base/lists.h"

namespace muster {

// Of the list beside the log. The value is as to_text() makes it.
std::string kept_entries_key(const std::string& log);

class KeptEntries {
 public:
  // Entries are added in the order of their numbers; one that is put back is added again.
  void add(int64_t number);
  void remove(int64_t number);
  size_t size() const { return numbers_.size(); }

  // "2-4 9 12-": these, and from 12 on all.
  std::string to_text() const;
  // Without a text: all. Throws: invalid_argument for a text that is no such list.
  static KeptEntries from_text(const std::optional<std::string>& text);

  // The next `count` entries to read. It never ends: from_here_on() and what follows may be there.
  Int64s take(int64_t count);
  int64_t from_here_on() const { return next_; }

 private:
  std::set<int64_t> numbers_;  // below next_
  int64_t next_ = 1;
};

}  // namespace muster
