// Waiting for a c10d::Work in slices of time.
#pragma once

#include <chrono>

#include "muster/base/clock.h"

namespace c10d {
class Work;
}  // namespace c10d

namespace muster {

// One bounded wait; false when it ran out. Throws: the work's failure.
bool wait_for(c10d::Work& work, milliseconds time);

}  // namespace muster
