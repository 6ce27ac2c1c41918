// What is said of a task: where it runs and how long, and when it ended badly a card, as `muster run` gives
// one for a job.
#pragma once

#include <string>

#include "muster/tasks/task.h"
#include "muster/tasks/task_host.h"

namespace muster {

// Several lines: what, where, when, what a well-known error means, the log's last lines. Reads the log of the
// last attempt; without it the card says less.
std::string task_card(const Task& task, const TaskResult& result);

// How the attempt ended. The launcher of a task's ranks ends with 128 + n where signal n ended the first that
// failed: that is the task's signal.
void take_exit(const Task& task, const TaskEnd& end, TaskAttempt& attempt);

// "exit code 3", "killed by SIGSEGV, core dumped", "its time limit of 2h is over".
std::string describe_failure(const Task& task, const TaskAttempt& attempt, const TaskEnd& end);

// "its result's loss is NaN; …" for one whose result is no finite number; else empty.
std::string describe_nan(const Task& task, const TaskResult& result);

// "GPU 2", "0.5 of GPU 3", "GPUs 0, 1", "the CPU", "CPUs 4-7".
std::string describe_devices(const TaskAttempt& attempt);

// ", restart 1", as its log is 1.log and MUSTER_ATTEMPT is 1; empty for the first start.
std::string restart_text(const TaskAttempt& attempt);

// "1m12s", to the millisecond; a span below 0 is 0.
std::string describe_span(double seconds);

}  // namespace muster
