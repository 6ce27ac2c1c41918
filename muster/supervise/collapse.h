// Several streams often say the same at the same time: their lines become one, "[0-7] message ×8".
// Lines are held back for a moment to see who else says them. The lines of one stream keep their
// order. Used by Output, on a terminal only; pure but for the times that it is given.
#pragma once

#include <deque>
#include <map>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/lists.h"

namespace muster {

// "0-3,7" for 0, 1, 2, 3 and 7.
std::string number_ranges(const IntSet& numbers);

class LineCollapser {
 public:
  explicit LineCollapser(milliseconds patience = milliseconds(80)) : patience_(patience) {}

  // A whole line, with its end, of the stream `number`, whose own prefix is `prefix`.
  void add(int number, const std::string& prefix, const std::string& line, TimePoint now);

  // What has waited long enough, as it is to be shown. With `all`, everything.
  std::string take(TimePoint now, bool all = false);

  // When there will be something to take; nothing when no line waits.
  OptionalTime due() const;

 private:
  struct Group {
    std::string line;
    std::string prefix;  // of the first that said it
    IntSet numbers;
    TimePoint since;
  };

  milliseconds patience_;
  std::deque<Group> groups_;
  size_t first_ = 0;               // the number of groups_[0] since the beginning
  std::map<int, size_t> last_of_;  // which group has each stream's last line
};

}  // namespace muster
