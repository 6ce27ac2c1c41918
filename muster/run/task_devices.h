// The devices for the tasks of a TaskSet, and which of them a task may have. Pure: the machine and
// its masks are arguments. For task_plan.cc and task_dispatch.cc; knows nothing of threads and
// processes.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/torch_names.h"
#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/plan.h"
#include "muster/placement/selection/usable_gpus.h"
#include "muster/run/task_entry.h"

namespace muster {

struct TaskDevice {
  std::string label{};              // "GPU 1", "CPU slot 0"
  Device device = kCPU;             // in this process; the CPU if the machine is simulated
  std::string uuid{};               // of a real GPU; empty: none
  bool alone = false;               // a MIG instance that only a process with its own mask can see
  VisibilityVariables variables{};  // limits a child to this device
  RankPlan as_rank{};               // a plan's entry for a rank on it
};

struct TaskPlaces {
  Indices devices{};  // any of these; the first is preferred
  size_t count = 1;   // needed at the same time, one per rank of a group
  // Why these are CPU slots although no "cpu" was asked for; empty: as asked.
  std::string instead{};
};

class TaskDevices {
 public:
  // `cpu_slots`: 0 means the machine's.
  TaskDevices(const Inventory& machine, const VisibilityMasks& masks, int cpu_slots);

  const std::vector<TaskDevice>& all() const { return devices_; }  // GPUs, then CPU slots

  // Throws: invalid_argument for a malformed selection, one of several MIG instances in a thread,
  // or more ranks than CPU slots; unavailable if there is no such device, or too few for the ranks,
  // and the CPU is not allowed.
  TaskPlaces places_of(const detail::TaskEntry& task) const;

  // The plan of a task whose ranks have these devices, in this order.
  Plan plan_of(const std::string& task, const Indices& devices) const;

 private:
  // Returns the GPUs that the task names. If they are none, or too few for its ranks, returns none,
  // and `problem` says so.
  UsableGpuList gpus_for(const detail::TaskEntry& task, std::string& problem) const;
  TaskPlaces on_gpus(const detail::TaskEntry& task, const UsableGpuList& gpus) const;
  // The places of a task that has no GPU because of `problem`: the CPU if it may run there.
  TaskPlaces without_gpu(const detail::TaskEntry& task, std::string problem) const;
  TaskPlaces on_cpu(const detail::TaskEntry& task, std::string instead) const;

  Host host_;
  bool simulated_;
  UsableGpus usable_;
  std::vector<TaskDevice> devices_;
};

}  // namespace muster
