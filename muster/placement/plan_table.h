// A Plan for people: rank → host → device → CPUs → share of the batch → why. Printed by `muster
// run`, `--dry-run` and self-started programs.
#pragma once

#include <string>

#include "muster/placement/plan.h"

namespace muster {

// The table, a line a rank, then the notes, a line each. "ordinal" is the CUDA device number that
// the rank's process will see. "near CPUs" are those of the device's NUMA node, "bound to CPUs"
// those that the rank is kept on. A column that has nothing to say for any rank is left out.
std::string plan_table(const Plan& plan);

}  // namespace muster
