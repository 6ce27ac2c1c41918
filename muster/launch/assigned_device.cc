// muster's launcher writes a plan, which has an entry for every rank. Other launchers tell a rank
// only its number on its host: the rank then looks at the machine itself, and takes the GPU with
// its number among those that it sees. Every rank of a host decides alone, and all decide alike.
#include "muster/launch/assigned_device.h"

#include <algorithm>

#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_part.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

namespace {

// Throws: invalid_argument for a plan without this rank.
AssignedDevice from_plan(const RankEnv& env) {
  const Plan plan = plan_from_json(read_small_file(env.plan), env.plan);
  const RankPlan* const own = rank_in(plan, env.rank);
  if (own == nullptr) {
    throw invalid_argument("plan '",
                           env.plan,
                           "': expected an entry for rank ",
                           env.rank,
                           ", got ",
                           plural(plan.ranks.size(), "rank"));
  }
  AssignedDevice found{
      .assignment = *own, .mesh = plan.mesh, .batch_shares = batch_shares_in(plan)};
  const DeviceAssignment& device = found.assignment.device;
  if (device.is_gpu() && !env.simulated)
    found.ordinal = device.ordinal;
  return found;
}

// A rank that takes this GPU, without a launcher's plan.
AssignedDevice on_gpu(const RankEnv& env, const Inventory& machine, const UsableGpu& usable) {
  const Host& host = machine.hosts.at(0);
  const Gpu& gpu = gpu_of(host, usable);
  AssignedDevice found = assigned_cpu(env, "");
  if (!machine.simulated)
    found.ordinal = usable.ordinal;
  found.assignment.host = host.name;
  found.assignment.reason =
      cat("visible GPU of local rank ", env.local_rank, " (", env.source, " assigns no device)");
  found.assignment.device = {.kind = DeviceAssignment::Kind::gpu,
                             .vendor = gpu.vendor,
                             .uuid = uuid_of(host, usable),
                             .index = gpu.index,
                             .pci = gpu.pci,
                             .model = model_of(host, usable),
                             .ordinal = usable.ordinal};
  return found;
}

// A mask that is set but empty hides everything.
bool names_one_device(const std::optional<std::string>& mask) {
  return mask && !mask->empty() && !contains(*mask, ',');
}

// Whether the launcher gave this rank a mask of its own, with one device: srun --gpus-per-task=1,
// or a wrapper. torchrun gives all ranks the same mask, so a user who tells there what surplus
// ranks get does not mean such a mask.
bool has_own_mask(const RankEnv& env,
                  Vendor vendor,
                  const VisibilityMasks& masks,
                  Surplus surplus) {
  if (env.source == "torchrun" && surplus != Surplus::error)
    return false;
  if (vendor == Vendor::nvidia)
    return names_one_device(masks.cuda);
  // HIP reads CUDA_VISIBLE_DEVICES where its own variable is empty.
  const auto& hip = masks.hip && !masks.hip->empty() ? masks.hip : masks.cuda;
  return names_one_device(masks.rocr) || names_one_device(hip);
}

// Throws: unavailable for a MIG instance that is not `first`, the only one that CUDA shows.
void check_can_be_seen(const RankEnv& env,
                       const Host& host,
                       const UsableGpu& gpu,
                       const UsableGpu& first) {
  if (!gpu.is_instance() || gpu == first)
    return;
  throw unavailable(
      "device: expected a GPU that this process can see for local rank ",
      env.local_rank,
      ", got ",
      label_of(host, gpu),
      ", but CUDA shows a process only its first MIG instance; `muster run` shows each "
      "rank its own");
}

// Decides for a rank of a host without GPUs. Throws: unavailable if there are GPUs, but all are
// sick: a training that runs unasked on the CPU for a day is worse than an error.
std::optional<AssignedDevice> assigned_without_gpu(const RankEnv& env,
                                                   const Host& host,
                                                   const UsableGpus& usable,
                                                   Surplus surplus) {
  if (!usable.sick.empty()) {
    throw unavailable("device: expected a GPU that can be used, got none: ",
                      describe(host, usable),
                      "; repair it, or hide it to run on the CPU (CUDA_VISIBLE_DEVICES=)");
  }
  if (surplus == Surplus::drop)
    return std::nullopt;
  if (usable.mask_is_wrong || host.gpus_expected)
    log_warning("runs on the CPU: ", describe(host, usable));
  return assigned_cpu(env, "no visible GPU");
}

[[noreturn]] void fail_surplus(const RankEnv& env,
                               const Host& host,
                               const UsableGpus& usable,
                               size_t num_gpus) {
  throw unavailable("device: expected a GPU for local rank ",
                    env.local_rank,
                    ", got ",
                    plural(num_gpus, "visible GPU"),
                    " (",
                    env.source,
                    " started ",
                    plural(env.local_world_size, "rank"),
                    " here); ",
                    describe(host, usable),
                    "; start fewer ranks, ",
                    env.local_rank_told ? "" : "tell each its LOCAL_RANK, ",
                    "or say what the others get: MUSTER_SURPLUS=cpu, drop or share");
}

}  // namespace

void keep_one_vendor(const Host& host, UsableGpuList& gpus) {
  if (gpus.empty())
    return;
  const Vendor vendor = gpu_of(host, gpus[0]).vendor;
  std::erase_if(gpus, [&](const UsableGpu& gpu) { return gpu_of(host, gpu).vendor != vendor; });
}

// The slot is only a number here: nobody has divided the cores.
AssignedDevice assigned_cpu(const RankEnv& env, const std::string& why) {
  AssignedDevice found;
  found.assignment.rank = env.rank;
  found.assignment.local_rank = env.local_rank;
  found.assignment.host_index = env.group_rank;
  found.assignment.device.cpu_slot = env.local_rank;
  found.assignment.reason = cat("CPU: ", why, " (", env.source, " assigns no device)");
  return found;
}

// The local ranks take the GPUs in order, and `surplus` decides for those that come after.
std::optional<AssignedDevice> assigned_by_local_rank(const RankEnv& env,
                                                     const Inventory& machine,
                                                     const VisibilityMasks& masks,
                                                     Surplus surplus) {
  const Host& host = machine.hosts.at(0);
  const UsableGpus usable = usable_gpus(host, masks);
  if (usable.gpus.empty())
    return assigned_without_gpu(env, host, usable, surplus);
  UsableGpuList gpus = usable.gpus;
  keep_one_vendor(host, gpus);
  if (has_own_mask(env, gpu_of(host, gpus[0]).vendor, masks, surplus))
    return on_gpu(env, machine, gpus[0]);
  const int num_gpus = int_size(gpus);
  const UsableGpu& gpu = gpus[env.local_rank % num_gpus];
  const bool is_surplus = env.local_rank >= num_gpus;
  if (is_surplus && surplus == Surplus::drop)
    return std::nullopt;
  if (is_surplus && surplus == Surplus::cpu)
    return assigned_cpu(env, cat("surplus, ", plural(num_gpus, "visible GPU"), " taken"));
  if (is_surplus && surplus == Surplus::error)
    fail_surplus(env, host, usable, gpus.size());
  check_can_be_seen(env, host, gpu, gpus[0]);
  AssignedDevice found = on_gpu(env, machine, gpu);
  if (surplus == Surplus::drop)
    found.local_world_size = std::min(env.local_world_size, num_gpus);
  return found;
}

// A simulated machine has no environment that hides anything.
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
