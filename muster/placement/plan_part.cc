// A whole plan answers from its ranks, and a part from what it was told of the whole.
#include "muster/placement/plan_part.h"

#include <optional>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"

namespace muster {

Plan part_without_ranks(const Plan& whole) {
  return {.policy = whole.policy,
          .mesh = whole.mesh,
          .global_batch = whole.global_batch,
          .visibility = whole.visibility,
          .simulated = whole.simulated,
          .part = PlanPart{.world_size = world_size(whole),
                           .num_hosts = place_of_host(whole, 0).count,
                           .own_gpus = all_own_gpus(whole),
                           .batch_shares = batch_shares_in(whole)}};
}

int world_size(const Plan& plan) {
  return plan.part ? plan.part->world_size : int_size(plan.ranks);
}

const RankPlan* rank_in(const Plan& plan, int rank) {
  const int at = rank - (plan.part ? plan.part->first_rank : 0);
  const bool is_there = at >= 0 && at < int_size(plan.ranks);
  return is_there ? &plan.ranks[at] : nullptr;
}

RankRange rank_numbers_on_host(const Plan& plan, int host_index) {
  RankRange range = ranks_on_host(plan, host_index);
  if (plan.part)
    range.first += plan.part->first_rank;
  return range;
}

HostPlace place_of_host(const Plan& plan, int host_index) {
  if (plan.part)
    return {.index = plan.part->hosts_before, .count = plan.part->num_hosts};
  HostPlace place;
  std::optional<int> before;
  for (const RankPlan& rank : plan.ranks) {
    if (rank.host_index == before)
      continue;
    before = rank.host_index;
    if (rank.host_index == host_index)
      place.index = place.count;
    ++place.count;
  }
  return place;
}

// The ranks of a host stand together.
bool all_own_gpus(const Plan& plan) {
  if (plan.part)
    return plan.part->own_gpus;
  StringSet of_host;
  int host_index = 0;
  for (const RankPlan& rank : plan.ranks) {
    if (rank.host_index != host_index)
      of_host.clear();
    host_index = rank.host_index;
    const bool has_gpu = rank.device.is_gpu();
    if (!has_gpu || !of_host.insert(rank.device.uuid.value).second)
      return false;
  }
  return true;
}

Int64s batch_shares_in(const Plan& plan) {
  if (plan.part)
    return plan.part->batch_shares;
  return plan.global_batch > 0 ? mapped(plan.ranks, &RankPlan::batch_share) : Int64s();
}

}  // namespace muster
