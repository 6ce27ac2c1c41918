// Each awaited slot has a deadline. A timer asks several times a second who has come; a slot whose
// time is over is killed, unless its process is saving a checkpoint, which gives it more time.
#include "muster/launch/rejoin_watch.h"

#include <signal.h>

#include <algorithm>
#include <iterator>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

constexpr milliseconds kAskEvery{200};

}  // namespace

// The clock of each process begins now.
void RejoinWatch::await(const IntSet& slots) {
  processes_.loop().cancel(timer_);
  awaited_.clear();
  for (const int slot : slots)
    awaited_[slot] = {.until = Clock::now() + limits_.to_come,
                      .latest = Clock::now() + limits_.to_come + limits_.to_save};
  timer_ = processes_.loop().call_at(Clock::now() + kAskEvery, [this] { look(); });
}

bool RejoinWatch::on_exit(int slot) {
  return awaited_.erase(slot) != 0 && !ask_.has_come(slot);
}

// Called by the timer. The answer of a process may have come since it was asked last.
void RejoinWatch::look() {
  if (processes_.is_ending())
    return;
  std::erase_if(awaited_, [&](const auto& entry) { return ask_.has_come(entry.first); });
  for (auto entry = awaited_.begin(); entry != awaited_.end();)
    entry = wait_for(entry->first, entry->second) ? std::next(entry) : awaited_.erase(entry);
  if (awaited_.empty())
    return;
  timer_ = processes_.loop().call_at(Clock::now() + kAskEvery, [this] { look(); });
}

// Processes that save are not ended: a save ends by itself, and what it has written by then would
// be lost.
bool RejoinWatch::wait_for(int slot, Awaited& awaited) {
  const auto now = Clock::now();
  if (now < awaited.until - limits_.to_come / 2)
    return true;
  if (ask_.is_saving && ask_.is_saving(slot)) {
    awaited.until = std::min(now + limits_.to_come, awaited.latest);
    if (!std::exchange(awaited.said, true))
      log_info("rank ", starts_.rank_in(slot), " is saving a checkpoint; the others wait for it");
  }
  if (now < awaited.until)
    return true;
  end(slot);
  return false;
}

void RejoinWatch::end(int slot) {
  const pid_t pid = processes_.pid_of(slot);
  log_warning("rank ",
              starts_.rank_in(slot),
              " has not come back to the others within ",
              format_duration(limits_.to_come),
              "; ending it");
  ended_.insert(pid);
  ::kill(pid, SIGKILL);
}

void RejoinWatch::explain(RankExits& exits) const {
  for (RankExit& exit : exits) {
    if (exit.signal != SIGKILL || !ended_.contains(exit.pid))
      continue;
    exit.cause = cat("ended by muster (SIGKILL): it had not come back to the others within ",
                     format_duration(limits_.to_come));
  }
}

}  // namespace muster
