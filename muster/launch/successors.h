// Processes that follow on ranks that failed, while the others go on. For run_local_ranks alone;
// who is to follow, and whether, Replacing says.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "muster/base/functions.h"
#include "muster/base/no_copy.h"
#include "muster/launch/rank_starts.h"
#include "muster/launch/rejoin_watch.h"
#include "muster/launch/replacement.h"
#include "muster/launch/shortage_wait.h"
#include "muster/supervise/descendants.h"

namespace muster {

struct SuccessorCallbacks {
  std::function<void(RankExits&)> explain{};  // completes what is known of ends
  Callback on_generation{};                   // one begins; the ends before it have been explained
  std::function<void(int slot)> on_start{};   // the slot has a process again
};

class Successors : NoCopy {
 public:
  // Sets rules.go_on, for as long as this lives.
  Successors(ProcessSet& processes,
             RankStarts& starts,
             Replacing& rules,
             size_t num_slots,
             SuccessorCallbacks callbacks);
  ~Successors();

  void on_exit(const ChildExit& exit);

  // False: these are not to be followed.
  bool follow(const ChildExits& failed);

  // Whether processes are still to be started.
  bool await_others() const { return asked_ || pause_ != 0; }

  // The job is asked to stop. Starts at once what a pause holds up, so that the ranks come
  // together, and can agree on the step after which they stop. Returns the slots of the processes
  // of this generation that the others will tell: they may not listen yet, and would end of the
  // signal.
  IntSet prepare_for_stop();

  bool have_followed(const ChildExit& exit) const { return followed_.contains(exit.pid); }
  void explain(RankExits& exits) const;

 private:
  bool may_go_on() const;
  void go_on(const NextGeneration& next);
  void start();
  void start_in(int slot);
  void give_up(int slot);
  void forget_replaced();

  ProcessSet& processes_;
  RankStarts& starts_;
  Replacing& rules_;
  SuccessorCallbacks callbacks_;
  int generation_ = 0;
  RejoinWatch rejoin_;
  IntSet running_;  // slots
  bool some_have_ended_ = false;
  bool asked_ = false;                   // about failures for which there is no answer yet
  Pids ended_;                           // since the last generation
  Pids replaced_;                        // of the generation before
  Pids followed_;                        // of all before
  std::map<pid_t, std::string> causes_;  // of the ends that were to be made good
  RankSpecs specs_;                      // of the generation
  IntSet to_start_;                      // slots, after the pause
  IntSet started_;                       // slots, in this generation
  EventLoop::Handle pause_ = 0;
  ShortageWait shortage_;
};

}  // namespace muster
