// Which machines tasks run on: the hosts of --hosts, the nodes of a Slurm allocation, or this one
// alone; and how the others are reached. For tasks_options.cc.
#pragma once

#include "muster/tasks/hosts/machines.h"
#include "muster/tasks/journal/settings.h"

namespace muster {

// None: this machine alone. Throws: invalid_argument.
TaskMachineList find_machines(const TasksSettings& settings);

}  // namespace muster
