// How a child process ended, and what is left of its descendants. For ProcessSet and ProcessPool.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/supervise/child.h"
#include "muster/supervise/descendants.h"

namespace muster {

struct ChildExit {
  int id = 0;
  pid_t pid = -1;
  int exit_code = 0;  // when signal == 0
  int signal = 0;
  bool core_dumped = false;
  int sent_signal = 0;  // the last signal that it was sent to end it; 0: it ended by itself
  TimePoint at{};

  bool failed() const { return exit_code != 0 || signal != 0; }
};

using ChildExits = std::vector<ChildExit>;

// How a child that has ended did so. Its zombie is kept: as long as it is there, neither its pid
// nor its process group's number can belong to anybody else, so that signalling the group is safe.
// Throws: io.
ChildExit exit_of(const Child& child, int id, int sent_signal);

// Waits for those of this process's children that have ended, and returns the others.
Pids without_ended(Pids children, const std::function<void(pid_t pid, int status)>& on_end = {});

// "process 17 (python3, state S)", for one that does not end.
std::string describe_process(pid_t pid);

}  // namespace muster
