// The devices are listed once: the usable GPUs of one vendor, then the CPU slots. A task's places
// are indices into that list. A task that finds no GPU as wanted runs on the CPU only if that was
// allowed, or if nothing was wanted and the machine has none.
#include "muster/run/task_devices.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/selection.h"
#include "muster/run/rank_device.h"

namespace muster {

namespace {

// Returns the variables that show a child this GPU alone.
VisibilityVariables shown_alone(Vendor vendor, const std::string& uuid) {
  if (vendor == Vendor::nvidia)
    return {{"CUDA_VISIBLE_DEVICES", uuid}, {"CUDA_DEVICE_ORDER", std::string("PCI_BUS_ID")}};
  // HIP takes an empty CUDA_VISIBLE_DEVICES as unset.
  return {{"ROCR_VISIBLE_DEVICES", uuid},
          {"HIP_VISIBLE_DEVICES", std::nullopt},
          {"CUDA_VISIBLE_DEVICES", ""}};
}

// `first` is the first usable GPU. Of several MIG instances, CUDA shows a process only that one.
TaskDevice device_of_gpu(const Host& host,
                         const UsableGpu& gpu,
                         const UsableGpu& first,
                         bool simulated) {
  const bool is_hidden_instance = gpu.is_instance() && gpu != first;
  TaskDevice device{.label = label_of(host, gpu), .alone = is_hidden_instance};
  const Gpu& whole = gpu_of(host, gpu);
  device.as_rank = {.host = host.name, .numa_node = whole.numa_node, .cpus = whole.near_cpus};
  device.as_rank.device = {.kind = DeviceAssignment::Kind::gpu,
                           .vendor = whole.vendor,
                           .uuid = uuid_of(host, gpu),
                           .index = whole.index,
                           .pci = whole.pci,
                           .model = model_of(host, gpu)};
  if (simulated)
    return device;
  device.device = gpu_device(gpu.ordinal.value);
  device.uuid = uuid_of(host, gpu).value;
  device.variables = shown_alone(whole.vendor, device.uuid);
  return device;
}

std::string who_is(const detail::TaskEntry& task) {
  return cat("task '", printable(task.name), "': ");
}

// A text that is no selection is wrong on every machine, so it is an error even if the task may run
// on the CPU.
Selection parse_device(const detail::TaskEntry& task) {
  try {
    return Selection(task.options.device);
  } catch (const SelectionError& error) {
    throw invalid_argument(who_is(task),
                           "device '",
                           printable(task.options.device),
                           "': ",
                           error.problem(),
                           ", or cpu");
  }
}

// Returns the number of devices that the task takes at one time, of `there_are` that it may have.
size_t num_devices(const detail::TaskEntry& task, size_t there_are) {
  return task.ranks ? *task.ranks : there_are;
}

}  // namespace

// Tasks on CPU slots do not see the GPUs, as LibTorch would otherwise use them.
TaskDevices::TaskDevices(const Inventory& machine, const VisibilityMasks& masks, int cpu_slots)
    : host_(machine.hosts.at(0)),
      simulated_(machine.simulated),
      usable_(usable_gpus(host_, masks)) {
  keep_one_vendor(host_, usable_.gpus);
  for (const UsableGpu& gpu : usable_.gpus)
    devices_.push_back(device_of_gpu(host_, gpu, usable_.gpus[0], machine.simulated));
  VisibilityVariables hidden;
  if (!usable_.gpus.empty() && !machine.simulated)
    hidden = {{"CUDA_VISIBLE_DEVICES", ""}, {"ROCR_VISIBLE_DEVICES", ""}};
  const int slots = cpu_slots > 0 ? cpu_slots : host_.cpu_slots;
  for (int slot = 0; slot < slots; ++slot) {
    RankPlan as_rank{.host = host_.name};
    as_rank.device.cpu_slot = slot;
    devices_.push_back({.label = cat("CPU slot ", slot), .variables = hidden, .as_rank = as_rank});
  }
}

// A group needs a slot for each rank at the same time.
TaskPlaces TaskDevices::on_cpu(const detail::TaskEntry& task, std::string instead) const {
  TaskPlaces places{.instead = std::move(instead)};
  for (size_t i = usable_.gpus.size(); i < devices_.size(); ++i)
    places.devices.push_back(i);
  places.count = num_devices(task, places.devices.size());
  if (places.count > places.devices.size()) {
    throw invalid_argument(
        who_is(task),
        "expected at most ",
        plural(places.devices.size(), "rank"),
        ", one a CPU slot, got ",
        places.count,
        places.instead.empty() ? "" : cat(" (on the CPU: ", places.instead, ")"),
        "; ask for fewer, or raise TaskSetOptions::cpu_slots or MUSTER_CPU_SLOTS");
  }
  return places;
}

TaskPlaces TaskDevices::places_of(const detail::TaskEntry& task) const {
  const auto& wanted = task.options.device;
  if (wanted == "cpu")
    return on_cpu(task, {});
  if (wanted.empty() && usable_.gpus.empty() && usable_.sick.empty())
    return on_cpu(task, "no visible GPU");
  std::string problem;
  const auto found = gpus_for(task, problem);
  return found.empty() ? without_gpu(task, problem) : on_gpus(task, found);
}

UsableGpuList TaskDevices::gpus_for(const detail::TaskEntry& task, std::string& problem) const {
  const auto& wanted = task.options.device;
  const Selection selection = parse_device(task);
  UsableGpuList found;
  problem = cat("expected device '", wanted, "', got none");
  try {
    check_selection_hosts(selection, {&host_});
    if (!usable_.gpus.empty())
      found = select_gpus(selection, host_, usable_);
  } catch (const SelectionError& error) {
    problem = cat("device '", wanted, "': ", error.problem());
  }
  if (found.empty() || found.size() >= num_devices(task, 1))
    return found;
  problem = cat("expected a GPU for each of ",
                *task.ranks,
                " ranks, got ",
                found.size(),
                wanted.empty() ? "" : cat(" by '", wanted, "'"));
  return {};
}

TaskPlaces TaskDevices::without_gpu(const detail::TaskEntry& task, std::string problem) const {
  const std::string what_there_is = describe(host_, usable_);
  if (!has_text(problem, what_there_is))
    problem += cat("; ", what_there_is);
  if (task.options.allow_cpu)
    return on_cpu(task, std::move(problem));
  const bool is_group = task.mode == TaskMode::group;
  throw unavailable(who_is(task),
                    problem,
                    "; ",
                    is_group ? "ask for fewer ranks, other devices" : "name another device",
                    ", \"cpu\", or set allow_cpu");
}

// A thread cannot use a MIG instance that only a process of its own sees.
TaskPlaces TaskDevices::on_gpus(const detail::TaskEntry& task, const UsableGpuList& gpus) const {
  TaskPlaces places;
  for (const UsableGpu& gpu : gpus) {
    const size_t index = std::ranges::find(usable_.gpus, gpu) - usable_.gpus.begin();
    if (!devices_[index].alone || task.mode != TaskMode::thread)
      places.devices.push_back(index);
  }
  places.count = num_devices(task, places.devices.size());
  if (places.devices.empty()) {
    throw invalid_argument(who_is(task),
                           "expected a GPU that this process can see, got '",
                           task.options.device,
                           "', but CUDA shows a process only its first MIG instance; add it with "
                           "TaskMode::process");
  }
  return places;
}

// The ranks of a plan all see the same GPUs, and each takes its own by its ordinal. CUDA shows a
// process at most one MIG instance, so with these each rank sees its own alone.
Plan TaskDevices::plan_of(const std::string& task, const Indices& devices) const {
  Plan plan{.policy = "task", .simulated = simulated_};
  int next = 0;
  for (const size_t index : devices) {
    RankPlan rank = devices_[index].as_rank;
    rank.rank = rank.local_rank = next++;
    rank.device.ordinal = {rank.device.is_gpu() ? rank.rank : 0};
    rank.reason = cat("task '", printable(task), "': ", devices_[index].label);
    if (index < usable_.gpus.size() && usable_.gpus[index].is_instance())
      plan.visibility = Visibility::own;
    plan.ranks.push_back(std::move(rank));
  }
  if (plan.visibility == Visibility::own) {
    for (RankPlan& rank : plan.ranks)
      rank.device.ordinal = {};
  }
  return plan;
}

}  // namespace muster
