// The device that a rank computes on: what the launcher assigned or, if it assigns none, the
// visible GPU of its local rank. Called by a rank, through muster/run or the C interface; knows
// nothing of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/lists.h"
#include "muster/base/rank_env.h"
#include "muster/placement/request.h"
#include "muster/placement/selection/usable_gpus.h"

namespace muster {

struct AssignedDevice {
  std::optional<CudaOrdinal> ordinal{};  // of the GPU to make current; nothing: the CPU
  RankPlan assignment{};
  std::optional<int> local_world_size{};  // if ranks are left out: the number of the others
  MeshShape mesh{};                       // of all ranks, if the launcher was given one
  Int64s batch_shares{};                  // of all ranks; empty if the plan has no global batch
};

// Leaves only the first GPU's vendor: a LibTorch is built for one vendor's GPUs, and each vendor
// counts its own from 0.
void keep_one_vendor(const Host& host, UsableGpuList& gpus);

// A rank on the CPU, for the reason `why`.
AssignedDevice assigned_cpu(const RankEnv& env, const std::string& why);

// Returns nothing for a rank that is left out: without a GPU, if `surplus` is drop. If the launcher
// assigns no device, MUSTER_INVENTORY's machine replaces this one. Throws: unavailable if a
// launcher that assigns no devices has started more ranks than there are visible GPUs, and surplus
// is error; io, invalid_argument for a plan that cannot be read or does not name this rank.
std::optional<AssignedDevice> assigned_device(const RankEnv& env, Surplus surplus);

// This machine and what the environment hides of it, or MUSTER_INVENTORY's machine.
struct SeenMachine {
  Inventory machine{};
  VisibilityMasks masks{};
};
SeenMachine see_machine();

// For a launcher that assigns no devices: the visible GPU of the local rank, or, if there are too
// few, what `surplus` says. A mask that names a single GPU makes that the rank's own, whatever its
// local rank.
std::optional<AssignedDevice> assigned_by_local_rank(const RankEnv& env,
                                                     const Inventory& machine,
                                                     const VisibilityMasks& masks,
                                                     Surplus surplus);

}  // namespace muster
