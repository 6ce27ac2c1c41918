#include "muster/launch/worker_group.h"

#include <signal.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "muster/base/log.h"
#include "muster/base/memory_group.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/oom_kills.h"
#include "muster/launch/port_watch.h"
#include "muster/launch/rejoin_watch.h"
#include "muster/launch/replacement.h"
#include "muster/launch/source_lines.h"
#include "muster/launch/successors.h"
#include "muster/launch/worker_starts.h"
#include "muster/supervise/descendants.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kLookAtRanksEvery{1'000};

// Of the failure that the card is about; the files that say are on this host.
void name_source_lines(std::vector<WorkerExit>& exits) {
  const WorkerExit* first = first_failure(exits);
  for (WorkerExit& exit : exits) {
    if (&exit == first)
      exit.stack = with_source_lines(exit.stack);
  }
}

// What tells this launcher's processes from all others, those of the job's other hosts too.
std::vector<std::string> marks_of(const std::vector<WorkerSpec>& specs) {
  if (specs.empty())
    return {};
  const auto found = specs[0].environment.find("MUSTER_MARK");
  return found == specs[0].environment.end()
             ? std::vector<std::string>()
             : std::vector<std::string>{cat("MUSTER_MARK=", found->second)};
}

// Of a rank that failed by itself, for which the others do not end.
void say_lost(const WorkerExit& exit, size_t running) {
  if (!exit.failed() || exit.sent_signal != 0)
    return;
  log(LogLevel::warn,
      cat("rank ",
          exit.rank,
          " is lost: ",
          cause_and_error(exit),
          "; ",
          running,
          running == 1 ? " rank goes" : " ranks go",
          " on (--on-failure continue)"));
}

std::string rank_list(const std::vector<int>& ranks) {
  return cat(ranks.size() == 1 ? "rank " : "ranks ", join(ranks, ", "));
}

// Says once, after a while, that some ranks have ended well and the others have not: often those
// wait for a collective that nobody will join any more.
class EarlyEnd {
 public:
  EarlyEnd(ProcessSet& processes,
           const WorkerStarts& starts,
           size_t num_slots,
           std::chrono::milliseconds delay)
      : processes_(processes), starts_(starts), delay_(delay), running_(num_slots) {
    std::iota(running_.begin(), running_.end(), 0);
  }
  EarlyEnd(const EarlyEnd&) = delete;
  EarlyEnd& operator=(const EarlyEnd&) = delete;
  ~EarlyEnd() { processes_.loop().cancel(timer_); }

  void on_exit(const ChildExit& exit) {
    std::erase(running_, exit.id);
    ended_.push_back(exit.id);
    failed_ |= exit.failed();
    if (timer_ == 0)
      timer_ = processes_.loop().call_at(exit.at + delay_, [this] { say(); });
  }

 private:
  void say() {
    if (failed_ || running_.empty() || processes_.stop_requested() != 0)
      return;
    log(LogLevel::info,
        cat(ranks_in(ended_),
            ended_.size() == 1 ? " has" : " have",
            " ended with exit code 0, the first ",
            format_duration(delay_),
            " ago; ",
            ranks_in(running_),
            running_.size() == 1 ? " goes" : " go",
            " on"));
  }

  std::string ranks_in(const std::vector<int>& slots) const {
    std::vector<int> ranks;
    ranks.reserve(slots.size());
    for (const int slot : slots)
      ranks.push_back(starts_.rank_in(slot));
    return rank_list(ranks);
  }

  ProcessSet& processes_;
  const WorkerStarts& starts_;
  std::chrono::milliseconds delay_;
  std::vector<int> running_;  // slots
  std::vector<int> ended_;
  bool failed_ = false;
  EventLoop::Handle timer_ = 0;
};

// Names ranks that are stopped: the others wait for them and nobody else says why.
class StoppedRanks {
 public:
  StoppedRanks(ProcessSet& processes,
               const WorkerStarts& starts,
               size_t num_slots,
               std::optional<std::chrono::milliseconds> limit)
      : processes_(processes), starts_(starts), limit_(limit) {
    for (size_t slot = 0; slot < num_slots; ++slot)
      on_start(static_cast<int>(slot));
    look_again();
  }
  void on_start(int slot) { ranks_.push_back({.slot = slot, .pid = processes_.pid_of(slot)}); }

  StoppedRanks(const StoppedRanks&) = delete;
  StoppedRanks& operator=(const StoppedRanks&) = delete;
  ~StoppedRanks() { processes_.loop().cancel(timer_); }

  void on_exit(const ChildExit& exit) {
    std::erase_if(ranks_, [&](const Rank& rank) { return rank.pid == exit.pid; });
  }

  // The SIGKILLs that came from here say so.
  void explain(std::vector<WorkerExit>& exits) const {
    for (WorkerExit& exit : exits) {
      if (exit.signal != SIGKILL || !ended_.contains(exit.pid))
        continue;
      exit.cause = cat("ended by muster (SIGKILL): it had been stopped for ",
                       format_duration(*limit_),
                       " (--stopped-timeout)");
    }
  }

 private:
  struct Rank {
    int slot;
    pid_t pid;
    std::optional<Clock::time_point> since{};
    bool said = false;
  };

  void look_again() {
    timer_ = processes_.loop().call_at(Clock::now() + kLookAtRanksEvery, [this] {
      for (Rank& rank : ranks_)
        look(rank);
      look_again();
    });
  }

  void look(Rank& rank) {
    const int number = starts_.rank_in(rank.slot);
    const char state = process_status(rank.pid).state;
    if (state != 'T' && state != 't') {
      if (std::exchange(rank.said, false))
        log(LogLevel::info, cat("rank ", number, " goes on"));
      rank.since.reset();
      return;
    }
    const auto now = Clock::now();
    if (!rank.since)
      rank.since = now;
    if (limit_ && now - *rank.since >= *limit_) {
      log(LogLevel::warn,
          cat("rank ",
              number,
              " has been stopped for ",
              format_duration(*limit_),
              "; ending it (--stopped-timeout)"));
      ended_.insert(rank.pid);
      ::kill(rank.pid, SIGKILL);
    } else if (!std::exchange(rank.said, true)) {
      log(LogLevel::warn,
          cat("rank ",
              number,
              " (pid ",
              rank.pid,
              ") is stopped",
              state == 't' ? " by a debugger" : "",
              "; the others will wait for it; kill -CONT ",
              rank.pid,
              " continues it"));
    }
  }

  ProcessSet& processes_;
  const WorkerStarts& starts_;
  std::optional<std::chrono::milliseconds> limit_;
  std::vector<Rank> ranks_;
  std::set<pid_t> ended_;
  EventLoop::Handle timer_ = 0;
};

}  // namespace

GroupResult run_workers(ProcessSet& processes,
                        const std::vector<WorkerSpec>& specs,
                        const std::vector<int>& inherit_fds,
                        const GroupRules& rules) {
  processes.post_sentinel(marks_of(specs));
  OomKills oom_kills([] { return count_oom_kills(); });
  Output output(processes.loop());
  Input input(processes.loop());
  std::string fault;
  PortWatch port(processes.loop(), rules.master_port, [&](const std::string& stranger) {
    if (processes.is_ending())
      return;  // what is saved now is worth more
    fault = stranger;
    processes.end_all_now();
  });
  if (!fault.empty())
    return {.exits = {}, .fault = fault};
  WorkerStarts starts(processes, output, input, inherit_fds);
  starts.make_log_folder(specs);
  try {
    for (size_t slot = 0; slot < specs.size(); ++slot)
      starts.start(static_cast<int>(slot), specs[slot]);
  } catch (const Error&) {
    processes.kill_all();
    throw;
  }
  EarlyEnd early_end(processes, starts, specs.size(), rules.early_end_after);
  StoppedRanks stopped(processes, starts, specs.size(), rules.stopped_for);
  const auto explain_all = [&](std::vector<WorkerExit>& exits) {
    oom_kills.explain(exits);
    stopped.explain(exits);
  };
  size_t running = specs.size();
  std::optional<Successors> successors;
  if (rules.replacing != nullptr) {
    successors.emplace(processes,
                       starts,
                       *rules.replacing,
                       specs.size(),
                       SuccessorCallbacks{.explain = explain_all,
                                          .on_generation = [&] { oom_kills.forget(); },
                                          .on_start =
                                              [&](int slot) {
                                                stopped.on_start(slot);
                                                ++running;
                                              }});
  }
  WaitRules wait{
      .stop_on_failure = !rules.goes_on,
      .grace = rules.shutdown_timeout,
      .until = rules.until,
      .on_exit =
          [&](const ChildExit& exit) {
            early_end.on_exit(exit);
            stopped.on_exit(exit);
            if (exit.failed())
              port.look();  // it may be the consequence
            if (--running == 0 && !successors)
              port.stop();
            if (rules.goes_on)
              say_lost(starts.in_short(exit), running);
            if (rules.on_failure && fault.empty() && exit.failed() && exit.sent_signal == 0)
              rules.on_failure(starts.in_short(exit));
            if (successors)
              successors->on_exit(exit);
          },
      .account = [&](const ChildExit& exit) { return account_of(starts.explained(exit)); }};
  if (successors) {
    wait.is_made_good = [&](const std::vector<ChildExit>& failed) {
      return successors->follow(failed);
    };
    wait.awaits_others = [&] {
      return successors->await_others();
    };
    wait.before_stop = [&] {
      return successors->prepare_for_stop();
    };
  }
  WaitResult ended;
  try {
    ended = processes.wait_all(wait);
  } catch (const Error&) {  // one that could not be started in place of another
    processes.kill_all();
    throw;
  }
  input.close();
  // A job that was stopped, or is now, ends soon, whoever holds the pipe that it writes to.
  output.finish([&] { return ended.stopped_by != 0 || processes.stop_requested() != 0; });

  GroupResult result{.exits = {},
                     .stopped_by = ended.stopped_by,
                     .timed_out = ended.timed_out,
                     .fault = fault,
                     .all_gone = ended.survivors.empty()};
  for (const ChildExit& end : ended.exits)
    if (!successors || !successors->have_followed(end))
      result.exits.push_back(starts.explained(end));
  put_cause_first(result.exits, rules.goes_on);
  explain_all(result.exits);
  if (successors)
    successors->explain(result.exits);
  name_source_lines(result.exits);
  if (!ended.killed.empty()) {
    log(LogLevel::warn,
        cat("killed processes that ranks had left behind: ", join(ended.killed, ", ")));
  }
  for (const std::string& survivor : ended.survivors) {
    log(LogLevel::error, cat("could not end ", survivor, "; it is left to the system"));
  }
  return result;
}

}  // namespace muster
