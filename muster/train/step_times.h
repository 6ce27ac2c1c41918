// The time of this rank since the last query, by category, from its activity file: metrics use it
// to show the breakdown of steps over time.
#pragma once

#include <array>
#include <cstdint>

#include "muster/trace/activity_layout.h"

namespace muster {

// By Category. Units: seconds of the main thread.
using CategorySeconds = std::array<double, kActivityCategories>;

class StepTimes {
 public:
  StepTimes();
  // All zero if this process writes no activity file.
  CategorySeconds since_last();

 private:
  std::array<int64_t, kActivityCategories> before_ns_{};
};

}  // namespace muster
