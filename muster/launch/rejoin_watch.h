// Sees to it that the processes that are left come to a new generation: one that does not within a
// limit is ended, which is a failure like others, and so replaced in turn; but for one that is
// saving. For run_local_ranks alone.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"
#include "muster/launch/rank_exit.h"
#include "muster/launch/rank_starts.h"
#include "muster/supervise/descendants.h"
#include "muster/supervise/process_set.h"

namespace muster {

// Questions about the process in a slot.
struct RejoinQuestions {
  // Asked a few times a second, of those that have not come.
  std::function<bool(int slot)> has_come{};
  std::function<bool(int slot)> is_saving{};  // asked of those whose time is half over
};

struct RejoinLimits {
  milliseconds to_come;
  milliseconds to_save;  // more, for one that is saving
};

class RejoinWatch : NoCopy {
 public:
  RejoinWatch(ProcessSet& processes,
              const RankStarts& starts,
              RejoinLimits limits,
              RejoinQuestions questions)
      : processes_(processes), starts_(starts), limits_(limits), ask_(std::move(questions)) {}
  ~RejoinWatch() { processes_.loop().cancel(timer_); }

  // These, and no longer those of an earlier call.
  void await(const IntSet& slots);
  // True: it was awaited, and has ended without having come.
  bool on_exit(int slot);

  // The SIGKILLs that came from here say so.
  void explain(RankExits& exits) const;

 private:
  struct Awaited {
    TimePoint until;
    TimePoint latest;   // whatever it saves
    bool said = false;  // that it is saving
  };

  void look();
  bool wait_for(int slot, Awaited& awaited);  // false: no longer
  void end(int slot);

  ProcessSet& processes_;
  const RankStarts& starts_;
  const RejoinLimits limits_;
  RejoinQuestions ask_;
  std::map<int, Awaited> awaited_;  // by slot
  Pids ended_;
  EventLoop::Handle timer_ = 0;
};

}  // namespace muster
