// Which ranks hold a job up, as a table for its end. Pure.
#pragma once

#include <string>

#include "muster/trace/breakdown.h"

namespace muster {

// The ranks whose own time is longest, slowest first: host, device, and where a step's time goes.
// At most `most` of them, and how many there are besides. Empty where no rank holds the others up.
std::string straggler_table(const Breakdown& breakdown, size_t most = 8);

}  // namespace muster
