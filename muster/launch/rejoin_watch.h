// Sees to it that the ranks that are left come to a new generation: one that does not within a limit is
// ended, which is a failure like others, and so replaced in turn. For run_workers alone.
#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <vector>

#include "muster/launch/worker_exit.h"
#include "muster/supervise/process_set.h"

namespace muster {

class RejoinWatch {
 public:
  // `has_come` is asked a few times a second, of those that have not.
  RejoinWatch(ProcessSet& processes, std::chrono::milliseconds limit, std::function<bool(int rank)> has_come)
      : processes_(processes), limit_(limit), has_come_(std::move(has_come)) {}
  RejoinWatch(const RejoinWatch&) = delete;
  RejoinWatch& operator=(const RejoinWatch&) = delete;
  ~RejoinWatch() { processes_.loop().cancel(timer_); }

  // These, and no longer those of an earlier call.
  void await(const std::set<int>& ranks);
  void on_exit(int rank) { awaited_.erase(rank); }

  // The SIGKILLs that came from here say so.
  void explain(std::vector<WorkerExit>& exits) const;

 private:
  void look();

  ProcessSet& processes_;
  std::chrono::milliseconds limit_;
  std::function<bool(int)> has_come_;
  Clock::time_point until_;
  std::set<int> awaited_;
  std::set<pid_t> ended_;
  EventLoop::Handle timer_ = 0;
};

}  // namespace muster
