// The machines that a run of tasks has: this one alone, several, or those of an inventory; what
// each has, and how the others are reached. For the run's spine. Who says which there are knows ssh
// or Slurm; this does not.
#pragma once

#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/tasks/hosts/remote_host.h"

namespace muster {

// One machine to be asked, and used.
struct TaskMachine {
  std::string name{};
  bool here = false;
  int slots = 0;   // tasks at a time; 0: no limit
  int cpus = 0;    // that the run may have of it; 0: all
  Strings argv{};  // starts the server there
  Environment command_environment{};
  Environment environment{};  // to be set there
  std::string advice{};       // what to look at when it cannot be reached
};

using TaskMachineList = std::vector<TaskMachine>;

struct TaskMachines {
  Inventory inventory{};
  VisibilityMasks masks{};  // of all of its hosts
  Ints slots{};             // by host: tasks at a time; 0: no limit
  // The connection to each host: null for this machine. The list is empty where this is the only
  // one.
  RemoteHosts connections{};

  // Which host is this machine; -1: none.
  int here() const;
};

// Asks for what has to be known of a machine that is to run these tasks, and for no more, since
// every answer takes time.
RemoteHello question_for(const Tasks& tasks);

// The machines of an inventory's file. Throws: invalid_argument.
TaskMachines machines_in_file(const std::string& path);

// Asks all at once; none: this machine alone. Blocking: until they have answered. Throws:
// unavailable naming the hosts that do not; invalid_argument; as probe_this_machine.
TaskMachines ask_machines(const TaskMachineList& machines, const RemoteHello& question);

}  // namespace muster
