// For ranks that are threads: torch::manual_seed sets the one generator of the process, so a rank
// holds this from the seed to its last draw.
#pragma once

#include <mutex>

namespace muster::testing {

inline std::mutex seeding;

}  // namespace muster::testing
