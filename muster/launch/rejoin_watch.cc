#include "muster/launch/rejoin_watch.h"

#include <signal.h>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kAskEvery{200};

}  // namespace

void RejoinWatch::await(const std::set<int>& slots) {
  processes_.loop().cancel(timer_);
  awaited_ = slots;
  until_ = Clock::now() + limit_;
  timer_ = processes_.loop().call_at(Clock::now() + kAskEvery, [this] { look(); });
}

void RejoinWatch::look() {
  if (processes_.is_ending()) return;
  std::erase_if(awaited_, [&](int slot) { return has_come_(slot); });
  if (awaited_.empty()) return;
  if (Clock::now() < until_) {
    timer_ = processes_.loop().call_at(Clock::now() + kAskEvery, [this] { look(); });
    return;
  }
  for (const int slot : awaited_) {
    const pid_t pid = processes_.pid_of(slot);
    log(LogLevel::warn, cat("rank ", starts_.rank_in(slot), " has not come back to the others within ",
                            format_duration(limit_), "; ending it"));
    ended_.insert(pid);
    ::kill(pid, SIGKILL);
  }
}

void RejoinWatch::explain(std::vector<WorkerExit>& exits) const {
  for (WorkerExit& exit : exits) {
    if (exit.signal != SIGKILL || !ended_.contains(exit.pid)) continue;
    exit.cause =
        cat("ended by muster (SIGKILL): it had not come back to the others within ", format_duration(limit_));
  }
}

}  // namespace muster
