// Which devices there are for the tasks of a TaskSet, and which of them a task may have. Pure: the machine
// and its masks are arguments. For task_plan.cc and task_dispatch.cc; knows nothing of threads and processes.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/plan.h"
#include "muster/placement/usable_gpus.h"
#include "muster/run/task_entry.h"

namespace muster {

struct TaskDevice {
  std::string label = {};              // "GPU 1", "CPU slot 0"
  c10::Device device = c10::kCPU;      // in this process; the CPU where the machine is simulated
  std::string uuid = {};               // of a real GPU; empty: none
  bool alone = false;                  // a MIG instance that only a process with a mask of its own can see
  VisibilityVariables variables = {};  // what shows a child this device and no other
  RankPlan as_rank = {};               // what a group's plan says of a rank on it
};

struct TaskPlaces {
  std::vector<size_t> devices = {};  // any of these, the first being the first choice
  size_t count = 1;                  // so many at one time, one for each rank of a group
  std::string instead = {};          // why these are CPU slots though no "cpu" was asked for; empty: as asked
};

class TaskDevices {
 public:
  // `cpu_slots`: 0 for the machine's.
  TaskDevices(const Inventory& machine, const VisibilityMasks& masks, int cpu_slots);

  const std::vector<TaskDevice>& all() const { return devices_; }  // GPUs, then CPU slots

  // Throws: invalid_argument for a device that is no selection, one of several MIG instances in a thread, or
  // more ranks than CPU slots; unavailable when there is no such device, or not one for each rank, and the
  // CPU is not allowed.
  TaskPlaces places_of(const detail::TaskEntry& task) const;

  // Of a task whose ranks have these devices, in this order.
  Plan plan_of(const std::string& task, const std::vector<size_t>& devices) const;

 private:
  TaskPlaces on_cpu(const detail::TaskEntry& task, std::string instead) const;

  Host host_;
  bool simulated_;
  UsableGpus usable_;
  std::vector<TaskDevice> devices_;
};

}  // namespace muster
