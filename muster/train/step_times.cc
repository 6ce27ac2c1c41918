// The activity file adds up the nanoseconds of each category. What is told is the growth since the
// last question.
#include "muster/train/step_times.h"

#include "muster/base/indices_of.h"
#include "muster/trace/activity.h"

namespace muster {

StepTimes::StepTimes() {
  since_last();
}

// A process without an activity file has told nothing.
CategorySeconds StepTimes::since_last() {
  const Activity* const activity = Activity::get();
  if (activity == nullptr)
    return {};
  const auto now_ns = activity->totals();
  CategorySeconds seconds{};
  for (const size_t i : indices_of(seconds))
    seconds[i] = 1e-9 * static_cast<double>(now_ns[i] - before_ns_[i]);
  before_ns_ = now_ns;
  return seconds;
}

}  // namespace muster
