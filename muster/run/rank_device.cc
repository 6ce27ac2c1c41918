#include "muster/run/rank_device.h"

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/device/probe.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/plan_json.h"

namespace muster {

namespace {

RankPlan assignment_on_cpu(const RankEnv& env, std::string reason) {
  RankPlan plan;
  plan.rank = env.rank;
  plan.local_rank = env.local_rank;
  plan.host_index = env.group_rank;
  plan.device.cpu_slot = env.local_rank;
  plan.reason = std::move(reason);
  return plan;
}

RankDevice from_plan(const RankEnv& env) {
  const Plan plan = plan_from_json(read_file(env.plan), env.plan);
  if (env.rank >= static_cast<int>(plan.ranks.size())) {
    throw Error(ErrorCode::invalid_argument, cat("plan '", env.plan, "': expected an entry for rank ",
                                                 env.rank, ", got ", plan.ranks.size(), " ranks"));
  }
  RankDevice found{.device = c10::kCPU, .assignment = plan.ranks[static_cast<size_t>(env.rank)]};
  for (const RankPlan& rank : plan.ranks) {
    if (plan.global_batch > 0) found.batch_shares.push_back(rank.batch_share);
  }
  if (found.assignment.device.kind == DeviceAssignment::Kind::cuda && !env.simulated) {
    found.device =
        c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(found.assignment.device.ordinal.value));
  }
  return found;
}

// torchrun, mpirun and srun start ranks and leave the choice to them: the visible GPU of the local rank; a
// single visible GPU is the rank's own, whatever its number.
RankDevice from_visible_gpus(const RankEnv& env) {
  const Host host = probe_this_machine().hosts.at(0);
  std::vector<size_t> visible(host.gpus.size());
  for (size_t i = 0; i < visible.size(); ++i) visible[i] = i;
  if (const char* mask = std::getenv("CUDA_VISIBLE_DEVICES")) visible = visible_devices(host.gpus, mask).gpus;
  if (visible.empty()) {
    return {.device = c10::kCPU,
            .assignment =
                assignment_on_cpu(env, cat("CPU: no visible GPU (", env.source, " assigns no device)"))};
  }
  const int ordinal = visible.size() == 1 ? 0 : env.local_rank;
  if (ordinal >= std::ssize(visible) ||
      (visible.size() == 1 && env.local_world_size > 1 && env.local_rank > 0 &&
       std::getenv("CUDA_VISIBLE_DEVICES") == nullptr)) {
    throw Error(ErrorCode::unavailable,
                cat("device: expected a GPU for local rank ", env.local_rank, ", got ", visible.size(),
                    " visible GPU(s) (started by ", env.source,
                    "); start fewer ranks, or use `muster run --surplus`"));
  }
  const Gpu& gpu = host.gpus[visible[static_cast<size_t>(ordinal)]];
  RankDevice found{.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(ordinal)),
                   .assignment = assignment_on_cpu(env, cat("visible GPU of local rank ", env.local_rank,
                                                            " (", env.source, " assigns no device)"))};
  found.assignment.host = host.name;
  found.assignment.device = {.kind = DeviceAssignment::Kind::cuda,
                             .uuid = gpu.uuid,
                             .index = gpu.index,
                             .model = gpu.model,
                             .ordinal = {ordinal}};
  return found;
}

}  // namespace

RankDevice device_of_rank(const RankEnv& env) {
  return env.plan.empty() ? from_visible_gpus(env) : from_plan(env);
}

}  // namespace muster
