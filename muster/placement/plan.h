// Which rank gets which device, and why: the result of placement, a value that can be printed, stored as JSON
// (plan.json), and executed exactly.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/device/inventory.h"

namespace muster {

// Which of the job's GPUs a rank can see. See INTERFACES in docs/design.md.
enum class Visibility { job, own, own_first, all };

struct DeviceAssignment {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int cpu_slot = 0;  // kind == cpu
  GpuUuid uuid;      // the rest: kind == cuda
  GpuIndex index;
  std::string model;
  CudaOrdinal ordinal;  // what the rank's process will see

  // MUSTER_DEVICE's form: "GPU-<uuid>" or "cpu:<slot>".
  std::string id() const;
};

struct RankPlan {
  int rank = 0;
  int local_rank = 0;
  int host_index = 0;
  std::string host;
  DeviceAssignment device;
  std::string reason;  // "GPU 2 of 4: sequential (local rank 2)"
};

struct Plan {
  std::string policy;
  Visibility visibility = Visibility::job;
  bool simulated = false;
  std::vector<RankPlan> ranks;     // in rank order
  std::vector<std::string> notes;  // what the user should know: "no GPU: 2 CPU slots (…)"
};

// CUDA_VISIBLE_DEVICES for one rank of the plan; nothing when it must be left alone (CPU, Visibility::all).
std::optional<std::string> cuda_visible_devices(const Plan& plan, const RankPlan& rank);

}  // namespace muster
