// What a rank's activity file says of its work, as people ask for it: where its time went, how fast
// it was, what it is in. For `muster report` and `muster top`. Values; the only I/O is reading the
// files.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/strings.h"
#include "muster/trace/read_activity.h"

namespace muster {

// Seconds between two times in nanoseconds; 0 if the second is not later.
double seconds_between(int64_t begin_ns, int64_t end_ns);

// Seconds of the main thread by Category until `now_ns`.
struct TimeShares {
  double total = 0;
  std::array<double, kActivityCategories> seconds{};
  double of(Category category) const { return seconds.at(index_of(category)); }
};
TimeShares time_shares(const ActivityView& view, int64_t now_ns);

// Averages over the time from the rank's start to its last step; nothing before the first step.
std::optional<double> seconds_per_step(const ActivityView& view);
std::optional<double> samples_per_second(const ActivityView& view);

// "step > backward > all_reduce #41 f32[1000]": the spans that its main thread is in, and a
// collective that has not ended; empty: nothing that was named.
std::string doing_text(const ActivityView& view);

// The last collective or message that has ended, or the last at all if none has; nullptr: there was
// none.
const CallView* last_ended_call(const ActivityView& view);

// Since when the rank is in the innermost of what doing_text() tells.
int64_t doing_since_ns(const ActivityView& view);

// Reads the files of the folder's last attempt, by rank. A file that cannot be read is a line of
// `problems`.
ActivityViews read_ranks(const std::string& folder, Strings& problems);

}  // namespace muster
