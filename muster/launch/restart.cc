// A job that fails soon after each start is started again after longer and longer pauses; one that
// has run for a while starts again at once.
#include "muster/launch/restart.h"

#include <algorithm>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/launch/exit_report.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kQuick{60};  // a failure this soon comes of the start
constexpr std::chrono::seconds kLongestBackOff{60};
constexpr int kMostDoublings = 6;  // 1 s becomes more than the longest pause

}  // namespace

// The first failure costs no pause: whatever made a rank fail is often gone at once.
std::chrono::seconds BackOff::pause_after(Clock::duration ran) {
  quick_failures_ = ran < kQuick ? quick_failures_ + 1 : 0;
  if (quick_failures_ < 2)
    return std::chrono::seconds(0);
  return std::min(kLongestBackOff,
                  std::chrono::seconds(1 << std::min(quick_failures_ - 2, kMostDoublings)));
}

std::string pause_text(milliseconds pause) {
  return pause.count() > 0 ? cat(" in ", format_duration(pause)) : "";
}

// The time of the start counts from the end of the pause, which has not come yet.
std::chrono::seconds Restarts::use() {
  ++used_;
  const auto pause = back_off_.pause_after(Clock::now() - began_);
  began_ = Clock::now() + pause;
  return pause;
}

// A fault of the surroundings would come again.
bool Restarts::wanted(const GroupResult& result) const {
  const bool was_asked_to_end = result.stopped_by != 0 || result.timed_out;
  if (was_asked_to_end || !result.fault.empty())
    return false;
  return has_budget() && first_failure(result.exits) != nullptr;
}

// Signals are seen while it waits, as the event loop runs.
bool Restarts::wait(GroupResult& result,
                    ProcessSet& processes,
                    TimePoint started,
                    OptionalTime time_limit) {
  began_ = started;
  const auto delay = use();
  const RankExit& first = *first_failure(result.exits);
  log_warning("rank ",
              first.rank,
              " failed: ",
              cause_and_error(first),
              "; starting all ranks again",
              pause_text(delay),
              " (restart ",
              used_,
              " of ",
              budget_,
              ")");
  const auto at = Clock::now() + delay;
  const auto until = std::min(at, time_limit.value_or(at));
  while (processes.stop_requested() == 0 && Clock::now() < until)
    processes.loop().run_once(until);
  const int signal = processes.stop_requested();  // one that came when all had ended, too
  if (signal != 0) {
    log_info("stopped by ", signal_name(signal), "; not starting again");
    return false;
  }
  result.timed_out = time_limit && Clock::now() >= *time_limit;
  return !result.timed_out;
}

}  // namespace muster
