// Which device a rank computes on: what the launcher assigned, or, under launchers that assign none, the
// visible GPU of its local rank.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "muster/base/rank_env.h"
#include "muster/placement/plan.h"

namespace muster {

struct RankDevice {
  c10::Device device = c10::kCPU;
  RankPlan assignment;
  std::vector<int64_t> batch_shares = {};  // of all ranks, where the plan divides a global batch; else empty
};

// Throws: unavailable when more ranks than visible GPUs were started by a launcher that assigns none; io,
// invalid_argument for a plan that cannot be read or does not name this rank.
RankDevice device_of_rank(const RankEnv& env);

}  // namespace muster
