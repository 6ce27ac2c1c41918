// Which rank gets which device, and why: the result of placement, a value that can be printed, stored as JSON
// (plan.json), and executed exactly.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/mesh_shape.h"
#include "muster/device/inventory.h"

namespace muster {

// Which of the job's GPUs a rank can see. Ordinals follow from it.
enum class Visibility {
  job,        // all of its host's, in local-rank order: ordinal = LOCAL_RANK
  own,        // its own alone: ordinal 0
  own_first,  // its own, then its host's others: ordinal 0
  all,        // whatever the launcher saw: CUDA_VISIBLE_DEVICES is left alone
};

// "job", "own", "own-first", "all", as --visibility and plan.json spell them.
const char* to_string(Visibility visibility);

// Throws: invalid_argument naming the four values.
Visibility parse_visibility(std::string_view text);

struct DeviceAssignment {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int cpu_slot = 0;  // kind == cpu
  Vendor vendor = Vendor::nvidia;
  GpuUuid uuid = {};  // with the rest: kind == cuda; of a MIG instance its own
  GpuIndex index = {};
  PciAddress pci = {};
  std::string model = {};    // as CUDA names it, "… MIG 1g.5gb" of an instance
  CudaOrdinal ordinal = {};  // what the rank's process will see

  // MUSTER_DEVICE's form: "GPU-<uuid>", "MIG-<uuid>" or "cpu:<slot>".
  std::string id() const;
  bool operator==(const DeviceAssignment&) const = default;
};

struct RankPlan {
  int rank = 0;
  int local_rank = 0;
  int host_index = 0;  // place among the job's hosts, which Request::hosts may choose and order
  std::string host = {};
  DeviceAssignment device = {};
  std::vector<DeviceAssignment> more_devices = {};  // further GPUs of its own, of the same vendor
  std::optional<int> numa_node = {};
  std::string cpus = {};    // near the device, "0-31,64-95"; empty: not known
  bool bind_cpus = false;   // the launcher keeps the rank on `cpus`
  int64_t batch_share = 0;  // samples of each global batch; 0: no global batch was told
  std::string reason = {};  // "sequential: 3 of 4 GPUs"
  bool operator==(const RankPlan&) const = default;
};

struct Plan {
  std::string policy = {};
  MeshShape mesh = {};       // of all ranks; without axes where none was asked for
  int64_t global_batch = 0;  // the sum of all shares
  Visibility visibility = Visibility::job;
  bool simulated = false;
  std::vector<RankPlan> ranks = {};     // in rank order; a host's ranks are contiguous, hosts in order
  std::vector<std::string> notes = {};  // what the user should know: "no GPU (…): 2 CPU slots, …"
  bool operator==(const Plan&) const = default;
};

// The variables that make one rank of the plan see what plan.visibility says, by name; nullopt: to be unset.
// CUDA_VISIBLE_DEVICES for NVIDIA's GPUs, ROCR_VISIBLE_DEVICES for AMD's (HIP's own masks, which would be
// applied to what that shows, are unset). UUIDs, each once: CUDA hides everything when one is named twice.
// Empty for a rank on the CPU or on the other vendor's GPU (--surplus cpu): it must not take one of these.
// Nothing is set for a vendor that has no rank on the host, with Visibility::all, and in a simulated plan.
using VisibilityVariables = std::map<std::string, std::optional<std::string>>;
VisibilityVariables visibility_variables(const Plan& plan, const RankPlan& rank);

// The ranks on host `host_index`, as a range of plan.ranks: first rank and how many.
struct RankRange {
  size_t first = 0;
  size_t count = 0;
};
RankRange ranks_on_host(const Plan& plan, int host_index);

}  // namespace muster
