// Processes that follow on ranks that failed, while the others go on. For run_workers alone; who is to
// follow, and whether, Replacing says.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "muster/launch/rejoin_watch.h"
#include "muster/launch/replacement.h"
#include "muster/launch/worker_starts.h"

namespace muster {

class Successors {
 public:
  // `explain` completes what is known of ends; `on_start` is told of each rank that was started again.
  Successors(ProcessSet& processes, WorkerStarts& starts, const Replacing& rules,
             std::function<void(std::vector<WorkerExit>&)> explain, std::function<void(int rank)> on_start);
  Successors(const Successors&) = delete;
  Successors& operator=(const Successors&) = delete;
  ~Successors();

  void on_exit(const ChildExit& exit);

  // Starts processes for the ranks that failed, after a pause where there is to be one. False where these are
  // not to be followed. `left`: the ranks that run. Throws: SpawnError, io.
  bool follow(const std::vector<ChildExit>& failed, const std::set<int>& left);

  bool have_followed(const ChildExit& exit) const { return followed_.contains(exit.pid); }
  void explain(std::vector<WorkerExit>& exits) const { rejoin_.explain(exits); }

 private:
  void start(const std::vector<WorkerSpec>& specs);

  ProcessSet& processes_;
  WorkerStarts& starts_;
  const Replacing& rules_;
  std::function<void(std::vector<WorkerExit>&)> explain_;
  std::function<void(int)> on_start_;
  RejoinWatch rejoin_;
  bool some_have_ended_ = false;
  std::set<pid_t> followed_;
  std::set<int> waiting_;  // ranks that start after the pause
  EventLoop::Handle pause_ = 0;
};

}  // namespace muster
