// Texts about a task: where it runs, and a card when it has ended badly, as `muster run` gives one
// for a job.
#pragma once

#include <string>

#include "muster/tasks/task.h"

namespace muster {

// Several lines: what, where, when, what a well-known error means, the log's last lines. Reads the
// log of the last attempt; without it the card says less.
std::string task_card(const Task& task, const TaskResult& result);

// "GPU 2", "0.5 of GPU 3", "GPUs 0, 1", "the CPU", "CPUs 4-7".
std::string describe_devices(const TaskAttempt& attempt);

// ", restart 1", as its log is 1.log and MUSTER_ATTEMPT is 1; empty for the first start.
std::string restart_text(const TaskAttempt& attempt);

}  // namespace muster
