// Which of a job's GPUs have gone bad since it began: asked after a failure, before anything is
// started again on them. What the driver says of each (errors of its memory, a repair that waits
// for a reset, a GPU that is lost), and what it has written into the kernel's log.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/device/xid_log.h"
#include "muster/launch/lease_plan.h"
#include "muster/placement/plan.h"

namespace muster {

struct BadGpu {
  GpuIndex index{};
  GpuUuid uuid{};
  std::string what{};  // "3 uncorrected memory errors since the job began"
  bool operator==(const BadGpu&) const = default;
};

using BadGpus = std::vector<BadGpu>;

// The bad ones among the GPUs that `plan` gives to ranks of host `host_index`, by index. `before`
// is the host as the job found it, `now` as it is.
BadGpus gpus_gone_bad(const Plan& plan,
                      int host_index,
                      const Host& before,
                      const Host& now,
                      const std::vector<XidError>& xids);

// "GPU 1 (GPU-8f3c…): 3 uncorrected memory errors since the job began; GPU 2 …"
std::string describe(const BadGpus& bad);

// By which the planner leaves them out.
BusyGpus reasons_of(const BadGpus& bad);

// Remembers the host as it is now.
class GpuWatch {
 public:
  explicit GpuWatch(Host host);
  // Blocking: as long as the driver takes to answer, at most 30 s: then all of them are bad.
  // Nothing where the plan has no GPU there.
  BadGpus look(const Plan& plan, int host_index) const;

 private:
  Host before_;
  int64_t since_microseconds_;
};

}  // namespace muster
