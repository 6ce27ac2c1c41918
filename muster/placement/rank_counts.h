// How many ranks of a host go on its GPUs, and how many on CPU slots. Notes tell of the ranks that
// are too many. A private header of the planner.
#pragma once

#include <optional>
#include <string>

#include "muster/placement/plan_notes.h"
#include "muster/placement/policy/policy.h"

namespace muster {

struct RankCounts {
  int on_gpus = 0;
  int on_cpu = 0;  // by --surplus cpu
};

// How many ranks the policy can place there; 0 where nothing is selected.
int rank_capacity(const Policy& policy, const PolicyInput& input);

// Says why there is no place for a rank on the selected GPUs.
std::string why_no_rank(const Policy& policy, const PolicyInput& input);

// `nproc`: the number of ranks that was asked for; nothing: as many as the policy can place.
// Throws: invalid_argument when there are too many, and nothing says what the others get.
RankCounts rank_counts(const Policy& policy,
                       const PolicyInput& input,
                       std::optional<int> nproc,
                       PlanNotes& notes);

}  // namespace muster
