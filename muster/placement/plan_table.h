// A Plan for people: rank → host → device → why. Printed by `muster run`, `--dry-run` and self-started
// programs.
#pragma once

#include <string>

#include "muster/placement/plan.h"

namespace muster {

// The table, a line a rank, then the notes, a line each. "ordinal" is the CUDA device number that the rank's
// process will see.
std::string plan_table(const Plan& plan);

}  // namespace muster
