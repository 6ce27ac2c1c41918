#include "muster/launch/assigned_device.h"

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

namespace {

AssignedDevice from_plan(const RankEnv& env) {
  const Plan plan = plan_from_json(read_small_file(env.plan), env.plan);
  if (env.rank >= static_cast<int>(plan.ranks.size())) {
    throw Error(ErrorCode::invalid_argument,
                cat("plan '",
                    env.plan,
                    "': expected an entry for rank ",
                    env.rank,
                    ", got ",
                    plan.ranks.size(),
                    " ranks"));
  }
  AssignedDevice found{.assignment = plan.ranks[static_cast<size_t>(env.rank)]};
  found.mesh = plan.mesh;
  for (const RankPlan& rank : plan.ranks) {
    if (plan.global_batch > 0)
      found.batch_shares.push_back(rank.batch_share);
  }
  if (found.assignment.device.kind == DeviceAssignment::Kind::cuda && !env.simulated)
    found.ordinal = found.assignment.device.ordinal;
  return found;
}

AssignedDevice on_gpu(const RankEnv& env, const Inventory& machine, const UsableGpu& usable) {
  const Host& host = machine.hosts.at(0);
  const Gpu& gpu = gpu_of(host, usable);
  AssignedDevice found = assigned_cpu(env, "");
  if (!machine.simulated)
    found.ordinal = usable.ordinal;
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

// A LibTorch is built for one vendor's GPUs, and each vendor counts its own from 0.
std::vector<UsableGpu> of_one_vendor(const Host& host, std::vector<UsableGpu> gpus) {
  if (gpus.empty())
    return gpus;
  const Vendor vendor = gpu_of(host, gpus[0]).vendor;
  std::erase_if(gpus, [&](const UsableGpu& gpu) { return gpu_of(host, gpu).vendor != vendor; });
  return gpus;
}

// Whether the launcher gave this rank a mask of its own, with one device: srun --gpus-per-task=1,
// or a wrapper. torchrun gives all ranks the same; whoever says there what surplus ranks get does
// not mean such a mask.
bool has_own_mask(const RankEnv& env,
                  Vendor vendor,
                  const VisibilityMasks& masks,
                  Surplus surplus) {
  if (env.source == "torchrun" && surplus != Surplus::error)
    return false;
  const auto names_one = [](const std::optional<std::string>& mask) {
    return mask && !mask->empty() && mask->find(',') == std::string::npos;
  };
  if (vendor == Vendor::nvidia)
    return names_one(masks.cuda);
  return names_one(masks.rocr) ||
         names_one(masks.hip && !masks.hip->empty() ? masks.hip : masks.cuda);
}

// Of several MIG instances a process sees the first that its mask names.
void check_can_be_seen(const RankEnv& env,
                       const Host& host,
                       const UsableGpu& gpu,
                       const UsableGpu& first) {
  if (gpu.mig < 0 || gpu == first)
    return;
  throw Error(ErrorCode::unavailable,
              cat("device: expected a GPU that this process can see for local rank ",
                  env.local_rank,
                  ", got ",
                  label_of(host, gpu),
                  ", but CUDA shows a process only its first MIG instance; `muster run` shows each "
                  "rank its own"));
}

}  // namespace

AssignedDevice assigned_cpu(const RankEnv& env, const std::string& why) {
  AssignedDevice found;
  found.assignment.rank = env.rank;
  found.assignment.local_rank = env.local_rank;
  found.assignment.host_index = env.group_rank;
  found.assignment.device.cpu_slot = env.local_rank;
  found.assignment.reason = cat("CPU: ", why, " (", env.source, " assigns no device)");
  return found;
}

std::optional<AssignedDevice> assigned_by_local_rank(const RankEnv& env,
                                                     const Inventory& machine,
                                                     const VisibilityMasks& masks,
                                                     Surplus surplus) {
  const Host& host = machine.hosts.at(0);
  const UsableGpus usable = usable_gpus(host, masks);
  const std::vector<UsableGpu> gpus = of_one_vendor(host, usable.gpus);
  if (gpus.empty() && !usable.sick.empty()) {
    throw Error(ErrorCode::unavailable,
                cat("device: expected a GPU that can be used, got none: ",
                    describe(host, usable),
                    "; repair it, or hide it to run on the CPU (CUDA_VISIBLE_DEVICES=)"));
  }
  if (gpus.empty() && surplus == Surplus::drop)
    return std::nullopt;
  if (gpus.empty() && (usable.mask_is_wrong || host.gpus_expected))
    log(LogLevel::warn, cat("runs on the CPU: ", describe(host, usable)));
  if (gpus.empty())
    return assigned_cpu(env, "no visible GPU");
  if (has_own_mask(env, gpu_of(host, gpus[0]).vendor, masks, surplus))
    return on_gpu(env, machine, gpus[0]);
  const auto place = static_cast<size_t>(env.local_rank);
  const int with_gpu = std::min(env.local_world_size, static_cast<int>(gpus.size()));
  if (place < gpus.size()) {
    check_can_be_seen(env, host, gpus[place], gpus[0]);
    AssignedDevice found = on_gpu(env, machine, gpus[place]);
    if (surplus == Surplus::drop)
      found.local_world_size = with_gpu;
    return found;
  }
  switch (surplus) {
    case Surplus::drop:
      return std::nullopt;
    case Surplus::cpu:
      return assigned_cpu(env, cat("surplus, ", plural(gpus.size(), "visible GPU"), " taken"));
    case Surplus::share:
      check_can_be_seen(env, host, gpus[place % gpus.size()], gpus[0]);
      return on_gpu(env, machine, gpus[place % gpus.size()]);
    case Surplus::error:
      break;
  }
  throw Error(ErrorCode::unavailable,
              cat("device: expected a GPU for local rank ",
                  env.local_rank,
                  ", got ",
                  plural(gpus.size(), "visible GPU"),
                  " (",
                  env.source,
                  " started ",
                  env.local_world_size,
                  " ranks here); ",
                  describe(host, usable),
                  "; start fewer ranks, ",
                  env.local_rank_told ? "" : "tell each its LOCAL_RANK, ",
                  "or say what the others get: MUSTER_SURPLUS=cpu, drop or share"));
}

SeenMachine see_machine() {
  const auto file = get_env("MUSTER_INVENTORY");
  SeenMachine seen{.machine = file ? read_inventory(*file) : probe_this_machine()};
  if (!seen.machine.simulated)
    seen.masks = inherited_masks();
  return seen;
}

std::optional<AssignedDevice> assigned_device(const RankEnv& env, Surplus surplus) {
  if (!env.plan.empty())
    return from_plan(env);
  const SeenMachine seen = see_machine();
  return assigned_by_local_rank(env, seen.machine, seen.masks, surplus);
}

}  // namespace muster
