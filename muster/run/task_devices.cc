#include "muster/run/task_devices.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/selection.h"

namespace muster {

namespace {

// A LibTorch is built for one vendor's GPUs, and each vendor counts its own from 0.
UsableGpus usable_of_first_vendor(const Host& host, const VisibilityMasks& masks) {
  UsableGpus usable = usable_gpus(host, masks);
  if (usable.gpus.empty())
    return usable;
  const Vendor vendor = gpu_of(host, usable.gpus[0]).vendor;
  std::erase_if(usable.gpus,
                [&](const UsableGpu& gpu) { return gpu_of(host, gpu).vendor != vendor; });
  return usable;
}

VisibilityVariables shown_alone(Vendor vendor, const std::string& uuid) {
  if (vendor == Vendor::nvidia)
    return {{"CUDA_VISIBLE_DEVICES", uuid}, {"CUDA_DEVICE_ORDER", std::string("PCI_BUS_ID")}};
  // HIP takes an empty CUDA_VISIBLE_DEVICES as unset.
  return {{"ROCR_VISIBLE_DEVICES", uuid},
          {"HIP_VISIBLE_DEVICES", std::nullopt},
          {"CUDA_VISIBLE_DEVICES", ""}};
}

TaskDevice device_of_gpu(const Host& host,
                         const UsableGpu& gpu,
                         const UsableGpu& first,
                         bool simulated) {
  TaskDevice device{.label = label_of(host, gpu), .alone = gpu.mig >= 0 && !(gpu == first)};
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
  device.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu.ordinal.value));
  device.uuid = uuid_of(host, gpu).value;
  device.variables = shown_alone(gpu_of(host, gpu).vendor, device.uuid);
  return device;
}

std::string who_is(const detail::TaskEntry& task) {
  return cat("task '", printable(task.name), "': ");
}

// What cannot be read is wrong on every machine; so it is an error even where the CPU is allowed.
Selection parse_device(const detail::TaskEntry& task) {
  try {
    return Selection(task.options.device);
  } catch (const SelectionError& error) {
    throw Error(ErrorCode::invalid_argument,
                cat(who_is(task),
                    "device '",
                    printable(task.options.device),
                    "': ",
                    error.problem(),
                    ", or cpu"));
  }
}

// How many of these devices the task takes at one time.
size_t num_devices(const detail::TaskEntry& task, size_t there_are) {
  return task.ranks ? static_cast<size_t>(*task.ranks) : there_are;
}

}  // namespace

TaskDevices::TaskDevices(const Inventory& machine, const VisibilityMasks& masks, int cpu_slots)
    : host_(machine.hosts.at(0)),
      simulated_(machine.simulated),
      usable_(usable_of_first_vendor(host_, masks)) {
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

TaskPlaces TaskDevices::on_cpu(const detail::TaskEntry& task, std::string instead) const {
  TaskPlaces places{.instead = std::move(instead)};
  for (size_t i = usable_.gpus.size(); i < devices_.size(); ++i)
    places.devices.push_back(i);
  places.count = num_devices(task, places.devices.size());
  if (places.count > places.devices.size()) {
    throw Error(ErrorCode::invalid_argument,
                cat(who_is(task),
                    "expected at most ",
                    plural(places.devices.size(), "rank"),
                    ", one a CPU slot, got ",
                    places.count,
                    places.instead.empty() ? "" : cat(" (on the CPU: ", places.instead, ")"),
                    "; ask for fewer, or raise TaskSetOptions::cpu_slots or MUSTER_CPU_SLOTS"));
  }
  return places;
}

TaskPlaces TaskDevices::places_of(const detail::TaskEntry& task) const {
  const std::string& wanted = task.options.device;
  if (wanted == "cpu")
    return on_cpu(task, {});
  if (wanted.empty() && usable_.gpus.empty() && usable_.sick.empty())
    return on_cpu(task, "no visible GPU");
  const Selection selection = parse_device(task);
  std::vector<UsableGpu> found;
  std::string problem = cat("expected device '", wanted, "', got none");
  try {
    check_selection_hosts(selection, {&host_});
    if (!usable_.gpus.empty())
      found = select_gpus(selection, host_, usable_);
  } catch (const SelectionError& error) {
    problem = cat("device '", wanted, "': ", error.problem());
  }
  if (!found.empty() && found.size() < num_devices(task, 1)) {
    problem = cat("expected a GPU for each of ",
                  *task.ranks,
                  " ranks, got ",
                  found.size(),
                  wanted.empty() ? "" : cat(" by '", wanted, "'"));
    found.clear();
  }
  if (found.empty()) {
    const std::string what_there_is = describe(host_, usable_);
    if (problem.find(what_there_is) == std::string::npos)
      problem += cat("; ", what_there_is);
    if (task.options.allow_cpu)
      return on_cpu(task, problem);
    throw Error(ErrorCode::unavailable,
                cat(who_is(task),
                    problem,
                    "; ",
                    task.mode == TaskMode::group ? "ask for fewer ranks, other devices"
                                                 : "name another device",
                    ", \"cpu\", or set allow_cpu"));
  }
  TaskPlaces places;
  for (const UsableGpu& gpu : found) {
    const auto at = std::find(usable_.gpus.begin(), usable_.gpus.end(), gpu);
    const auto index = static_cast<size_t>(at - usable_.gpus.begin());
    if (!devices_[index].alone || task.mode != TaskMode::thread)
      places.devices.push_back(index);
  }
  places.count = num_devices(task, places.devices.size());
  if (places.devices.empty()) {
    throw Error(ErrorCode::invalid_argument,
                cat(who_is(task),
                    "expected a GPU that this process can see, got '",
                    wanted,
                    "', but CUDA shows a process only its first MIG instance; add it with "
                    "TaskMode::process"));
  }
  return places;
}

// CUDA shows a process one MIG instance at most: then each rank sees its own alone.
Plan TaskDevices::plan_of(const std::string& task, const std::vector<size_t>& devices) const {
  Plan plan{.policy = "task", .simulated = simulated_};
  for (const size_t index : devices) {
    RankPlan rank = devices_[index].as_rank;
    rank.rank = rank.local_rank = static_cast<int>(plan.ranks.size());
    rank.device.ordinal = {rank.device.kind == DeviceAssignment::Kind::gpu ? rank.rank : 0};
    rank.reason = cat("task '", printable(task), "': ", devices_[index].label);
    if (index < usable_.gpus.size() && usable_.gpus[index].mig >= 0)
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
