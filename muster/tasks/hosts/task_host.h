// One host that tasks run on, as the runner sees it: this machine (local_host.h), or another at the
// end of a connection (remote_host.h). Values and an interface; knows nothing of schedules and
// journals.
#pragma once

#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"
#include "muster/supervise/process_pool.h"
#include "muster/tasks/schedule/device_pool.h"
#include "muster/tasks/task.h"

namespace muster {

// One start of a task. What it points to must live until `start` has returned.
struct StartOrder {
  int id = 0;  // the run's name for it
  const Task* task = nullptr;
  int attempt = 0;
  const Allocation* where = nullptr;
  std::string log{};  // path of its log; what else belongs to the attempt lies beside it
  int log_fd = -1;    // open until its end has been told
};

// How a start ended.
struct TaskEnd {
  enum class Kind {
    ended,
    refused,  // another job has a GPU of it
    starved,  // it never began, for want of processes, descriptors or memory
    lost,     // its host was
  };
  Kind kind = Kind::ended;
  PoolExit exit{};        // exit.exit.id is the order's
  std::string why_not{};  // it never began, for that reason
  bool out_of_memory = false;
};

using TaskEnds = std::vector<TaskEnd>;

class TaskHost : NoCopy {
 public:
  TaskHost() = default;
  virtual ~TaskHost() = default;

  // False when another job is known to have a GPU of it; then `start` must not follow.
  virtual bool reserve(const StartOrder& order) = 0;

  // Has it run. Its end is told later. Throws: Error when it cannot begin.
  virtual void start(const StartOrder& order) = 0;

  // Asks a task to end: SIGTERM, and after `grace` SIGKILL to all of it.
  virtual void end(int id, milliseconds grace) = 0;

  // Other jobs' holdings of its GPUs, in words; empty: nothing is in the way.
  virtual std::string held() const = 0;
};

}  // namespace muster
