// Which checkpoints of a folder came after which. A training that has gone back to an older step saves
// smaller steps later, beside those of the branch that it has left. Called by whoever loads or removes
// checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/checkpoint/directory.h"

namespace muster {

// The last saved first. One whose manifest cannot be read stands where its step puts it. Throws: io when the
// folder cannot be read.
std::vector<StepFolder> list_by_saving(const std::string& directory);

// The same, or `only` alone, where that is not empty. Throws: invalid_argument when it is not there.
std::vector<StepFolder> list_by_saving(const std::string& directory, const std::string& only);

// The serial number of the next one.
int64_t next_serial(const std::string& directory);

}  // namespace muster
