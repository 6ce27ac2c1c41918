// What is said while ranks wait for others that do not come: after a while, then at doubling
// intervals, in one line that names both. Used by everything that waits for ranks.
#pragma once

#include <string>

#include "muster/base/clock.h"
#include "muster/base/lists.h"

namespace muster {

class LateRanks {
 public:
  // A wait that begins now, and fails after `limit`: the first word comes well before that.
  explicit LateRanks(milliseconds limit);

  // Whether it is time to say something; true once for each time, and never just before the wait
  // fails.
  bool due();

  // "all_reduce #12 on rank 0: waited 20.0s for rank(s) 1, 3; rank(s) 0, 2 have come; …", as a
  // warning. `advice` is what to do about it.
  void tell(const std::string& operation,
            const Ints& came,
            const Ints& late,
            const char* advice = "see what the others do") const;

 private:
  milliseconds limit_;
  TimePoint began_;
  milliseconds next_;
  int words_ = 0;
};

// A warning that goes where these do.
void warn(const std::string& text);

// Warnings go to `warn` from now on; until this is called, to standard error. `setting` names what
// gives the limit, and must last as long as the process; until then none is named.
void set_warning(void (*warn)(const std::string& text), const char* setting);

// More to say of ranks that do not come, beside who they are: told once a wait. `late` are those
// that do not come, `came` the others of their group. It must not block.
using LateDetail = void (*)(const Ints& late, const Ints& came);
void set_late_detail(LateDetail tell);

}  // namespace muster
