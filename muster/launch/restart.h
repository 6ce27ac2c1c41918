// Whether and when all ranks are started again after a failure: one budget for the whole job, and
// longer and longer pauses while it fails soon after its start. Called by the launcher.
#pragma once

#include <chrono>
#include <string>

#include "muster/base/clock.h"
#include "muster/launch/local_ranks.h"

namespace muster {

// How long to wait after failures in a row that each came soon after the start: not at all, 1 s, 2
// s, 4 s … 60 s.
class BackOff {
 public:
  // The pause after a failure of ranks that had run for so long.
  std::chrono::seconds pause_after(Clock::duration ran);

 private:
  int quick_failures_ = 0;
};

// " in 4s", or nothing for no pause.
std::string pause_text(milliseconds pause);

class Restarts {
 public:
  explicit Restarts(int budget) : budget_(budget) {}

  // A rank has failed, nobody asked for the end, and the budget is not used up.
  bool wanted(const GroupResult& result) const;

  bool has_budget() const { return used_ < budget_; }
  int used() const { return used_; }
  int budget() const { return budget_; }

  // Takes one, for ranks that began at begin()'s time. Returns the pause before they start.
  std::chrono::seconds use();
  // Ranks begin now.
  void begin() { began_ = Clock::now(); }

  // Says what failed, and pauses. `started` is when the attempt began. False when a signal came
  // first, or `time_limit` (`result` says so then): nothing is to be started.
  bool wait(GroupResult& result, ProcessSet& processes, TimePoint started, OptionalTime time_limit);

 private:
  int budget_;
  int used_ = 0;
  BackOff back_off_;
  TimePoint began_ = Clock::now();
};

}  // namespace muster
