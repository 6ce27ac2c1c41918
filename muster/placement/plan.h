// The result of placement: which rank gets which device, and why. A value that can be printed,
// stored as JSON (plan.json), and executed exactly.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/mesh_shape.h"
#include "muster/base/strings.h"
#include "muster/device/inventory.h"

namespace muster {

// The GPUs of the job that a rank can see; device ordinals follow from it.
enum class Visibility {
  job,        // all of its host's, in local-rank order: ordinal = LOCAL_RANK
  own,        // only its own: ordinal 0
  own_first,  // its own, then the others of its host: ordinal 0
  all,        // whatever the launcher saw: CUDA_VISIBLE_DEVICES is unchanged
};

// "job", "own", "own-first", "all": the values in --visibility and plan.json.
const char* to_string(Visibility visibility);

// Throws: invalid_argument naming the four values.
Visibility parse_visibility(std::string_view text);

struct DeviceAssignment {
  enum class Kind { cpu, gpu };
  Kind kind = Kind::cpu;
  int cpu_slot = 0;  // kind == cpu
  Vendor vendor = Vendor::nvidia;
  GpuUuid uuid{};  // this and the rest: kind == gpu; a MIG instance has its own
  GpuIndex index{};
  PciAddress pci{};
  std::string model{};    // as CUDA names it; an instance's is "… MIG 1g.5gb"
  CudaOrdinal ordinal{};  // what the rank's process will see

  bool is_gpu() const { return kind == Kind::gpu; }

  // MUSTER_DEVICE's form: "GPU-<uuid>", "MIG-<uuid>" or "cpu:<slot>".
  std::string id() const;
  bool operator==(const DeviceAssignment&) const = default;
};

// The physical GPU's index, as `muster devices` and nvidia-smi count; nothing for a CPU slot.
inline std::optional<int> gpu_index(const DeviceAssignment& device) {
  return device.is_gpu() ? std::optional(device.index.value) : std::nullopt;
}

struct RankPlan {
  int rank = 0;
  int local_rank = 0;
  int host_index = 0;  // index among the job's hosts, which Request::hosts may select and order
  std::string host{};
  DeviceAssignment device{};
  std::vector<DeviceAssignment> more_devices{};  // further GPUs of this rank, of the same vendor
  std::optional<int> numa_node{};
  std::string cpus{};       // near the device, "0-31,64-95"; empty: unknown
  bool bind_cpus = false;   // the launcher binds the rank to `cpus`
  int64_t batch_share = 0;  // samples of each global batch; 0: no global batch given
  std::string reason{};     // "sequential: 3 of 4 GPUs"
  bool operator==(const RankPlan&) const = default;
};

// The indices of the rank's GPUs: "3", or "3, 4".
std::string gpu_numbers(const RankPlan& rank);

// What one host's part of a plan says of the whole: as much as its ranks need.
struct PlanPart {
  int first_rank = 0;     // of the part; its other ranks follow
  int world_size = 0;     // the whole plan's, as all that follows
  int hosts_before = 0;   // hosts with ranks that stand before this one
  int num_hosts = 0;      // hosts with ranks
  bool own_gpus = false;  // all_own_gpus (plan_part.h)
  Int64s batch_shares{};  // of each rank; empty: no global batch
  std::string digest{};   // equal plans for the same hosts have the same
  bool operator==(const PlanPart&) const = default;
};

struct Plan {
  std::string policy{};
  MeshShape mesh{};          // of all ranks; no axes if none was requested
  int64_t global_batch = 0;  // the sum of all shares
  Visibility visibility = Visibility::job;
  bool simulated = false;
  std::vector<RankPlan> ranks{};  // in rank order; a host's ranks are contiguous, hosts in order
  Strings notes{};                // for the user: "no GPU (…): 2 CPU slots, …"
  // Those of the notes that tell of ranks that are elsewhere than was asked for: never to be left
  // out.
  Strings warnings{};
  // The ranks are those of one host, as it gets them where a job has several. Nothing: the plan is
  // whole.
  std::optional<PlanPart> part{};
  bool operator==(const Plan&) const = default;
};

// The environment variables that give one rank the visibility of plan.visibility, by name; nullopt:
// unset it. CUDA_VISIBLE_DEVICES for NVIDIA GPUs, ROCR_VISIBLE_DEVICES for AMD GPUs (HIP's own
// masks are unset, because they would apply to what that shows). Values are UUIDs without
// repetitions, because CUDA hides everything if one is repeated. They are empty for a rank on the
// CPU or on the other vendor's GPU (--surplus cpu): it must not use such a GPU. Nothing is set for
// a vendor without ranks on the host, with Visibility::all, or in a simulated plan.
using VisibilityVariables = std::map<std::string, std::optional<std::string>>;
VisibilityVariables visibility_variables(const Plan& plan, const RankPlan& rank);

// The ranks on host `host_index`: as a range of plan.ranks, the first rank and their number; and
// themselves.
struct RankRange {
  size_t first = 0;
  size_t count = 0;
};
RankRange ranks_on_host(const Plan& plan, int host_index);
std::span<const RankPlan> ranks_of_host(const Plan& plan, int host_index);

}  // namespace muster
