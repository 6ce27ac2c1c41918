// The machines that a run of tasks has: this one, the hosts of --hosts, or the nodes of a Slurm allocation;
// what each has, and how the others are reached. For tasks_run.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "muster/cli/tasks_which_run.h"
#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/tasks/hosts/remote_host.h"

namespace muster {

struct TaskMachines {
  Inventory inventory = {};
  VisibilityMasks masks = {};   // of all of its hosts
  std::vector<int> slots = {};  // by host: tasks at a time; 0: no limit
  // By host; empty for this machine, and all of it where that is the only one.
  std::vector<std::unique_ptr<RemoteHost>> connections = {};

  // Which host is this machine; -1: none.
  int here() const;
};

// `--hosts` or `--hostfile` as a setting of the run, "a:4,b"; empty: neither. Throws: invalid_argument; io.
std::string hosts_setting(const TasksFlags& flags);

// Asks all machines at once for what the tasks could need, and, with `held`, the others for what jobs beside
// this run hold there. Blocking: until they have answered. Throws: unavailable naming the hosts that do not;
// invalid_argument; as probe_this_machine.
TaskMachines machines_of(const TasksRun& run, bool held);

// `--serve`: this machine's part of a run on another. The exit code. Blocking: until that has ended.
int serve_tasks_of_another();

}  // namespace muster
