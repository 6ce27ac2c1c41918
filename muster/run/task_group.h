// A task that consists of the ranks of a process group. A child process, this program started
// again, is their launcher: it places, starts and supervises them as muster::run does. That is
// possible only once per process, and not beside this process's own work. The ranks are further
// instances of the program. For task_set.cc and task_dispatch.cc.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/run/task_child.h"

namespace muster {

// Starts the launcher, whose order has the ranks' plan, waits for it, and returns the bytes of rank
// 0's result. Blocking: until every rank has ended. Throws: peer_failed naming the first failed
// rank, its device and the reason; as run_task_child.
std::string run_task_group(TaskChild launcher, const SharedStop& stop);

// Called in the launcher: runs the ranks, answers with rank 0's result or the first failure, and
// ends the process. `argv` is the program's.
[[noreturn]] void launch_task_group(const TaskOrder& order, const Strings& argv);

}  // namespace muster
