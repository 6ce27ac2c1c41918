// A plan of a job of several hosts in parts: each host gets its own ranks, and what these need of
// the whole. Each function takes a whole plan or a part, unless it says otherwise.
#pragma once

#include <cstdint>

#include "muster/placement/plan.h"

namespace muster {

// What a whole plan's parts have in common: a part of no host. The digest is empty.
Plan part_without_ranks(const Plan& whole);

// Of the job.
int world_size(const Plan& plan);

// The rank's entry; null: there is none, or it is another host's.
const RankPlan* rank_in(const Plan& plan, int rank);

// The numbers of the ranks on a host: of a part, on its own.
RankRange rank_numbers_on_host(const Plan& plan, int host_index);

// A host's number among the hosts that have ranks, in the plan's order, and how many these are.
struct HostPlace {
  int index = 0;
  int count = 0;
};
HostPlace place_of_host(const Plan& plan, int host_index);

// Whether every rank has a GPU that no other rank has, as NCCL wants it.
bool all_own_gpus(const Plan& plan);

// Of each rank of the job; empty: no global batch.
Int64s batch_shares_in(const Plan& plan);

}  // namespace muster
