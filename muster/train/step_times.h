// Where the time of this rank went since the last time that was asked, by its activity file: what metrics
// show of the breakdown of steps over time.
#pragma once

#include <array>

#include "muster/trace/activity_layout.h"

namespace muster {

// By Category. Units: seconds of the main thread.
using CategorySeconds = std::array<double, kActivityCategories>;

class StepTimes {
 public:
  StepTimes();
  // All zero where this process writes no activity file.
  CategorySeconds since_last();

 private:
  std::array<int64_t, kActivityCategories> before_ns_ = {};
};

}  // namespace muster
