// For a program that may be the first process of a container or a pod. Called by `muster`,
// muster::run and TaskSet before they wait for anything.
#pragma once

#include <signal.h>

namespace muster {

// Lets SIGTERM, SIGINT, SIGHUP and SIGQUIT end this process, with exit code 128 + n, where it is
// the first of its PID namespace and nothing else was said about them. The kernel would drop them:
// such a process gets only the signals that it has a handler for, so a pod that waits would live
// until SIGKILL comes.
void let_signals_end_first_process();

// Whether that has set the action, and not the program.
bool ends_first_process(const struct sigaction& action);

}  // namespace muster
