// muster's launcher writes a plan, which has an entry for every rank. Other launchers tell a rank
// only its number on its host: the rank then looks at the machine itself, and takes the GPU with
// its number among those that it sees. Every rank of a host decides alone, and all decide alike.
#include "muster/run/rank_device.h"

#include <utility>

namespace muster {

namespace {

RankDevice of_torch(AssignedDevice assigned) {
  RankDevice found{.device = kCPU,
                   .assignment = std::move(assigned.assignment),
                   .local_world_size = assigned.local_world_size,
                   .mesh = std::move(assigned.mesh),
                   .batch_shares = std::move(assigned.batch_shares)};
  if (assigned.ordinal)
    found.device = gpu_device(assigned.ordinal->value);
  return found;
}

std::optional<RankDevice> of_torch(std::optional<AssignedDevice> assigned) {
  return assigned ? std::optional(of_torch(*std::move(assigned))) : std::nullopt;
}

}  // namespace

RankDevice cpu_of_rank(const RankEnv& env, const std::string& why) {
  return of_torch(assigned_cpu(env, why));
}

std::optional<RankDevice> device_of_rank(const RankEnv& env, Surplus surplus) {
  return of_torch(assigned_device(env, surplus));
}

std::optional<RankDevice> device_by_local_rank(const RankEnv& env,
                                               const Inventory& machine,
                                               const VisibilityMasks& masks,
                                               Surplus surplus) {
  return of_torch(assigned_by_local_rank(env, machine, masks, surplus));
}

}  // namespace muster
