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
  // `explain` completes what is known of ends; `on_start` is told of each slot that has a process again. Sets
  // rules.go_on, for as long as this lives.
  Successors(ProcessSet& processes, WorkerStarts& starts, Replacing& rules, size_t num_slots,
             std::function<void(std::vector<WorkerExit>&)> explain, std::function<void(int slot)> on_start);
  Successors(const Successors&) = delete;
  Successors& operator=(const Successors&) = delete;
  ~Successors();

  void on_exit(const ChildExit& exit);

  // False: these are not to be followed.
  bool follow(const std::vector<ChildExit>& failed);

  // Whether processes are still to be started.
  bool await_others() const { return asked_ || pause_ != 0; }

  bool have_followed(const ChildExit& exit) const { return followed_.contains(exit.pid); }
  void explain(std::vector<WorkerExit>& exits) const { rejoin_.explain(exits); }

 private:
  void go_on(const NextGeneration& next);
  void start(const std::vector<WorkerSpec>& specs, const std::set<int>& slots);

  ProcessSet& processes_;
  WorkerStarts& starts_;
  Replacing& rules_;
  std::function<void(std::vector<WorkerExit>&)> explain_;
  std::function<void(int)> on_start_;
  int generation_ = 0;
  RejoinWatch rejoin_;
  std::set<int> running_;  // slots
  bool some_have_ended_ = false;
  bool asked_ = false;     // about failures for which there is no answer yet
  std::set<pid_t> ended_;  // since the last generation
  std::set<pid_t> followed_;
  EventLoop::Handle pause_ = 0;
};

}  // namespace muster
