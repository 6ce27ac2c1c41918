// Sees to it that the processes that are left come to a new generation: one that does not within a limit is
// ended, which is a failure like others, and so replaced in turn. For run_workers alone.
#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <vector>

#include "muster/launch/worker_exit.h"
#include "muster/launch/worker_starts.h"
#include "muster/supervise/process_set.h"

namespace muster {

class RejoinWatch {
 public:
  // `has_come` is asked a few times a second, of the slots whose processes have not.
  RejoinWatch(ProcessSet& processes, const WorkerStarts& starts, std::chrono::milliseconds limit,
              std::function<bool(int slot)> has_come)
      : processes_(processes), starts_(starts), limit_(limit), has_come_(std::move(has_come)) {}
  RejoinWatch(const RejoinWatch&) = delete;
  RejoinWatch& operator=(const RejoinWatch&) = delete;
  ~RejoinWatch() { processes_.loop().cancel(timer_); }

  // These, and no longer those of an earlier call.
  void await(const std::set<int>& slots);
  void on_exit(int slot) { awaited_.erase(slot); }

  // The SIGKILLs that came from here say so.
  void explain(std::vector<WorkerExit>& exits) const;

 private:
  void look();

  ProcessSet& processes_;
  const WorkerStarts& starts_;
  std::chrono::milliseconds limit_;
  std::function<bool(int)> has_come_;
  Clock::time_point until_;
  std::set<int> awaited_;
  std::set<pid_t> ended_;
  EventLoop::Handle timer_ = 0;
};

}  // namespace muster
