// The GPUs that were selected and that no rank has. A private header of the planner.
#pragma once

#include <optional>

#include "muster/placement/plan_notes.h"
#include "muster/placement/policy/policy.h"

namespace muster {

// Names them in a note; GPUs that --gpus names one by one, in a warning. `nproc`: the number of
// ranks that was asked for. That alone is no news: who asks for few ranks leaves GPUs to others.
void note_unused_gpus(const Policy& policy,
                      const PolicyInput& input,
                      const PolicyChoices& choices,
                      std::optional<int> nproc,
                      PlanNotes& notes);

}  // namespace muster
