// Which device a rank computes on: what the launcher assigned, or, under launchers that assign none, the
// visible GPU of its local rank.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "muster/base/rank_env.h"
#include "muster/placement/request.h"
#include "muster/placement/usable_gpus.h"

namespace muster {

struct RankDevice {
  c10::Device device = c10::kCPU;
  RankPlan assignment;
  std::optional<int> local_world_size = {};  // where ranks are left out: of those that are not
  MeshShape mesh = {};                       // of all ranks, where the launcher was told one
  std::vector<int64_t> batch_shares = {};  // of all ranks, where the plan divides a global batch; else empty
};

// A rank on the CPU, `why` being the reason.
RankDevice cpu_of_rank(const RankEnv& env, const std::string& why);

// Nothing for a rank that is to be left out: without a GPU, where `surplus` is drop. Where the launcher
// assigns no device, MUSTER_INVENTORY's machine takes the place of this one. Throws: unavailable when more
// ranks than visible GPUs were started by a launcher that assigns none, and surplus is error; io,
// invalid_argument for a plan that cannot be read or does not name this rank.
std::optional<RankDevice> device_of_rank(const RankEnv& env, Surplus surplus);

// This machine and what the environment hides of it, or MUSTER_INVENTORY's.
struct SeenMachine {
  Inventory machine = {};
  VisibilityMasks masks = {};
};
SeenMachine see_machine();

// Under a launcher that assigns none: the visible GPU of the local rank, or what `surplus` says where there
// are fewer. Where the rank has a mask that names a single GPU, that is its own, whatever its number.
std::optional<RankDevice> device_by_local_rank(const RankEnv& env, const Inventory& machine,
                                               const VisibilityMasks& masks, Surplus surplus);

}  // namespace muster
