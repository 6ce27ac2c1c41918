#include "muster/run/rank_device.h"

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/placement/gpu_facts.h"
#include "muster/placement/plan_json.h"

namespace muster {

namespace {

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

RankDevice on_gpu(const RankEnv& env, const Inventory& machine, const UsableGpu& usable) {
  const Host& host = machine.hosts.at(0);
  const Gpu& gpu = gpu_of(host, usable);
  RankDevice found = cpu_of_rank(env, "");
  if (!machine.simulated) {
    found.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(usable.ordinal.value));
  }
  found.assignment.host = host.name;
  found.assignment.reason =
      cat("visible GPU of local rank ", env.local_rank, " (", env.source, " assigns no device)");
  found.assignment.device = {.kind = DeviceAssignment::Kind::cuda,
                             .vendor = gpu.vendor,
                             .uuid = uuid_of(host, usable),
                             .index = gpu.index,
                             .pci = gpu.pci,
                             .model = model_of(host, usable),
                             .ordinal = usable.ordinal};
  return found;
}

}  // namespace

RankDevice cpu_of_rank(const RankEnv& env, const std::string& why) {
  RankDevice found;
  found.assignment.rank = env.rank;
  found.assignment.local_rank = env.local_rank;
  found.assignment.host_index = env.group_rank;
  found.assignment.device.cpu_slot = env.local_rank;
  found.assignment.reason = cat("CPU: ", why, " (", env.source, " assigns no device)");
  return found;
}

std::optional<RankDevice> device_by_local_rank(const RankEnv& env, const Inventory& machine,
                                               const VisibilityMasks& masks, Surplus surplus) {
  const Host& host = machine.hosts.at(0);
  const UsableGpus usable = usable_gpus(host, masks);
  const std::vector<UsableGpu>& gpus = usable.gpus;
  if (gpus.empty() && surplus == Surplus::drop) return std::nullopt;
  if (gpus.empty()) return cpu_of_rank(env, "no visible GPU");
  const bool own = gpus.size() == 1 && (masks.cuda || masks.rocr || masks.hip);  // srun --gpus-per-task=1
  if (own) return on_gpu(env, machine, gpus[0]);
  const auto place = static_cast<size_t>(env.local_rank);
  if (place < gpus.size()) return on_gpu(env, machine, gpus[place]);
  switch (surplus) {
    case Surplus::drop:
      return std::nullopt;
    case Surplus::cpu:
      return cpu_of_rank(env, cat("surplus, ", plural(gpus.size(), "visible GPU"), " taken"));
    case Surplus::share:
      return on_gpu(env, machine, gpus[place % gpus.size()]);
    case Surplus::error:
      break;
  }
  throw Error(ErrorCode::unavailable,
              cat("device: expected a GPU for local rank ", env.local_rank, ", got ",
                  plural(gpus.size(), "visible GPU"), " (", env.source, " started ", env.local_world_size,
                  " ranks here); ", describe(host, usable),
                  "; start fewer ranks, or say what the others get: MUSTER_SURPLUS=cpu, drop or share"));
}

std::optional<RankDevice> device_of_rank(const RankEnv& env, Surplus surplus) {
  if (!env.plan.empty()) return from_plan(env);
  const auto file = get_env("MUSTER_INVENTORY");
  const Inventory machine = file ? read_inventory(*file) : probe_this_machine();
  return device_by_local_rank(env, machine, machine.simulated ? VisibilityMasks{} : inherited_masks(),
                              surplus);
}

}  // namespace muster
