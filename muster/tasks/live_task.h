// What the runner keeps of a task that runs, and of one that has ended. For runner.cc; a private
// header.
#pragma once

#include <cstdint>
#include <exception>

#include "muster/base/fd.h"
#include "muster/supervise/event_loop.h"
#include "muster/tasks/journal/journal.h"
#include "muster/tasks/schedule/pool.h"

namespace muster {

// A task that runs.
struct LiveTask {
  size_t task = 0;
  Allocation where = {};
  Fd log = {};
  std::exception_ptr problem = {};  // why it cannot begin
  EventLoop::Handle time_limit = 0;
  bool interrupted = false;  // asked to end by the run
};

// An end whose record is on its way to the disk.
struct PendingEnd {
  uint64_t record = 0;
  size_t task = 0;
  AttemptEnd how = AttemptEnd::done;
  bool starved = false;  // refused, for want of processes or descriptors
};

}  // namespace muster
