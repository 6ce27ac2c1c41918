// A task that is the ranks of a process group. One child process, this program started again, is their
// launcher: it places, starts and guards them as muster::run does, which can be done once in a process and
// not beside what this one does itself. The ranks are the program a third time. For task_set.cc and
// task_dispatch.cc.
#pragma once

#include <string>
#include <vector>

#include "muster/placement/plan.h"
#include "muster/run/task_child.h"

namespace muster {

// Starts the launcher and waits for it; returns the bytes of what rank 0 returned.
// Blocking: until every rank has ended. Throws: peer_failed naming the first rank that failed, its device and
// the reason; as run_task_child.
std::string run_task_group(TaskChild launcher, const Plan& plan, const SharedStop& stop);

// Called in the launcher: runs the ranks, answers with rank 0's result or the first failure, and ends the
// process. `argv` is the program's.
[[noreturn]] void launch_task_group(const TaskOrder& order, const std::vector<std::string>& argv);

}  // namespace muster
