// A global batch divided among ranks: whole numbers that sum to it exactly. Called by the planner.
#pragma once

#include <cstdint>

#include "muster/base/lists.h"

namespace muster {

// A share for each weight (finite, above 0), in proportion by largest remainder, of equals the
// first; each at least 1, at the cost of the largest. Throws: invalid_argument when there are more
// ranks than samples.
Int64s batch_shares(int64_t global_batch, const Doubles& weights);

}  // namespace muster
