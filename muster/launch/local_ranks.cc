// LocalRanks connects the parts of one attempt: RankStarts starts the ranks, ProcessSet waits
// for them, and its callbacks are methods of LocalRanks. Beside the ranks run the watchers, each
// with a timer in the loop of the ProcessSet: PortWatch, EarlyEnd, StoppedRanks. With `replace`,
// Successors starts other processes in the slots of ranks that failed.
#include "muster/launch/local_ranks.h"

#include <signal.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/memory_group.h"
#include "muster/base/no_copy.h"
#include "muster/base/shortage.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/oom_kills.h"
#include "muster/launch/port_watch.h"
#include "muster/launch/rank_starts.h"
#include "muster/launch/rejoin_watch.h"
#include "muster/launch/replacement.h"
#include "muster/launch/shortage_note.h"
#include "muster/launch/shortage_wait.h"
#include "muster/launch/source_lines.h"
#include "muster/launch/successors.h"
#include "muster/supervise/descendants.h"

namespace muster {

namespace {

constexpr milliseconds kLookAtRanksEvery{1'000};
constexpr size_t kMostNamed = 20;  // of the processes that ranks have left behind

// Only the failure that the card is about gets its source lines, as their files are on this host.
void name_source_lines(RankExits& exits) {
  const RankExit* const first = first_failure(exits);
  for (RankExit& exit : exits) {
    if (&exit == first)
      exit.stack = with_source_lines(exit.stack);
  }
}

// The marks tell this launcher's processes from all others, those of the job's other hosts too.
Strings marks_of(const RankSpecs& specs) {
  if (specs.empty())
    return {};
  const std::string mark = find_or(specs[0].environment, "MUSTER_MARK");
  return mark.empty() ? Strings() : std::vector{cat("MUSTER_MARK=", mark)};
}

// Whether the rank failed by itself: nobody sent it a signal.
bool failed_unasked(const ChildExit& exit) {
  return exit.failed() && exit.sent_signal == 0;
}

// Names a rank that failed by itself, and for which the others do not end.
void say_lost(const RankExit& exit, size_t running) {
  log_warning("rank ",
              exit.rank,
              " is lost: ",
              cause_and_error(exit),
              "; ",
              running,
              word_for(running, " rank goes", " ranks go"),
              " on (--on-failure continue)");
}

// Says once, after a while, that some ranks have ended well and the others have not: often those
// wait for a collective that nobody will join any more.
class EarlyEnd : NoCopy {
 public:
  EarlyEnd(ProcessSet& processes, const RankStarts& starts, size_t num_slots, milliseconds delay)
      : processes_(processes), starts_(starts), delay_(delay), running_(num_slots) {
    std::iota(running_.begin(), running_.end(), 0);
  }
  ~EarlyEnd() { processes_.loop().cancel(timer_); }

  // The time counts from the first end. A failure is another story, and told elsewhere.
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
    const char* const has = word_for(ended_.size(), " has", " have");
    const char* const goes = word_for(running_.size(), " goes", " go");
    log_info(ranks_in(ended_),
             has,
             " ended with exit code 0, the first ",
             format_duration(delay_),
             " ago; ",
             ranks_in(running_),
             goes,
             " on");
  }

  std::string ranks_in(const Ints& slots) const {
    const auto ranks = mapped(slots, [&](const int slot) { return starts_.rank_in(slot); });
    return rank_list(ranks);
  }

  ProcessSet& processes_;
  const RankStarts& starts_;
  milliseconds delay_;
  Ints running_;  // slots
  Ints ended_;
  bool failed_ = false;
  EventLoop::Handle timer_ = 0;
};

// Names ranks that are stopped: the others wait for them and nobody else says why.
class StoppedRanks : NoCopy {
 public:
  StoppedRanks(ProcessSet& processes,
               const RankStarts& starts,
               size_t num_slots,
               OptionalDuration limit)
      : processes_(processes), starts_(starts), limit_(limit) {
    for (int slot = 0; std::cmp_less(slot, num_slots); ++slot)
      on_start(slot);
    look_again();
  }
  void on_start(int slot) { ranks_.push_back({.slot = slot, .pid = processes_.pid_of(slot)}); }

  ~StoppedRanks() { processes_.loop().cancel(timer_); }

  void on_exit(const ChildExit& exit) {
    std::erase_if(ranks_, [&](const Rank& rank) { return rank.pid == exit.pid; });
  }

  // The SIGKILLs that came from here say so.
  void explain(RankExits& exits) const {
    for (RankExit& exit : exits) {
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
    OptionalTime since{};
    bool said = false;
  };

  void look_again() {
    timer_ = processes_.loop().call_at(Clock::now() + kLookAtRanksEvery, [this] {
      for (Rank& rank : ranks_)
        look(rank);
      look_again();
    });
  }

  // The state of a process is 'T' when a signal has stopped it, and 't' when a debugger has.
  void look(Rank& rank) {
    const char state = process_status(rank.pid).state;
    const bool is_traced = state == 't';
    if (state != 'T' && !is_traced)
      return say_continued(rank);
    const auto now = Clock::now();
    if (!rank.since)
      rank.since = now;
    if (limit_ && now - *rank.since >= *limit_) {
      end(rank);
    } else if (!std::exchange(rank.said, true)) {
      say_stopped(rank, is_traced);
    }
  }

  void say_continued(Rank& rank) const {
    if (std::exchange(rank.said, false))
      log_info("rank ", starts_.rank_in(rank.slot), " goes on");
    rank.since.reset();
  }

  void say_stopped(const Rank& rank, bool is_traced) const {
    log_warning("rank ",
                starts_.rank_in(rank.slot),
                " (pid ",
                rank.pid,
                ") is stopped",
                is_traced ? " by a debugger" : "",
                "; the others will wait for it; kill -CONT ",
                rank.pid,
                " continues it");
  }

  void end(const Rank& rank) {
    log_warning("rank ",
                starts_.rank_in(rank.slot),
                " has been stopped for ",
                format_duration(*limit_),
                "; ending it (--stopped-timeout)");
    ended_.insert(rank.pid);
    ::kill(rank.pid, SIGKILL);
  }

  ProcessSet& processes_;
  const RankStarts& starts_;
  OptionalDuration limit_;
  std::vector<Rank> ranks_;
  Pids ended_;
  EventLoop::Handle timer_ = 0;
};

// One attempt. The members are destroyed in the reverse order: the watchers before what they watch.
class LocalRanks {
 public:
  LocalRanks(ProcessSet& processes,
             const RankSpecs& specs,
             const Ints& inherit_fds,
             const GroupRules& rules)
      : processes_(processes),
        specs_(specs),
        rules_(rules),
        oom_kills_([] { return count_oom_kills(); }),
        output_(processes.loop()),
        port_(processes.loop(),
              rules.master_port,
              [this](const auto& stranger) { on_stranger(stranger); }),
        starts_(processes, output_, inherit_fds) {}

  // Throws: SpawnError, io; no process is left then.
  void start() {
    if (fault_.empty())  // else PortWatch has found a stranger already
      start_all();
  }

  // Blocking: until every process has ended. Throws: SpawnError, io, of one in place of another.
  GroupResult run() {
    if (!fault_.empty())
      return {.exits = {}, .fault = fault_};
    const WaitResult ended = wait();
    starts_.close_input();
    output_.finish([&] { return is_hurried(ended); }, rules_.until);
    GroupResult result{.exits = exits_of(ended),
                       .stopped_by = ended.stopped_by,
                       .timed_out = ended.timed_out || has_waited_too_long(ended),
                       .fault = fault_,
                       .all_gone = ended.survivors.empty()};
    say_leftovers(ended);
    return result;
  }

 private:
  // The time limit was over before there was room for the ranks.
  bool has_waited_too_long(const WaitResult& ended) const {
    const bool none_ran = ended.exits.empty() && ended.stopped_by == 0;
    return none_ran && rules_.until && Clock::now() >= *rules_.until;
  }

  bool goes_on() const { return rules_.failure_policy == FailurePolicy::go_on; }

  // A job that was stopped, or is now, ends soon, whoever holds the pipe that it writes to.
  bool is_hurried(const WaitResult& ended) {
    const bool is_stopped = ended.stopped_by != 0 || processes_.stop_requested() != 0;
    return is_stopped || (rules_.is_awaited && rules_.is_awaited());
  }

  // The watchers begin when all ranks run. Many ranks take seconds to start, and a job that is
  // stopped meanwhile starts no more of them. Throws: SpawnError, io; no process is left then.
  void start_all() {
    starts_.make_log_folder(specs_);
    try {
      for (int slot = 0; const RankSpec& spec : specs_) {
        if (processes_.stop_requested() != 0)
          break;
        starts_.start(slot++, spec);
        ++running_;
      }
    } catch (const Error&) {
      processes_.kill_all();
      running_ = 0;
      throw;
    }
    forget_shortage_note();
    early_end_.emplace(processes_, starts_, specs_.size(), rules_.early_end_after);
    stopped_.emplace(processes_, starts_, specs_.size(), rules_.stopped_for);
    if (rules_.replacing != nullptr) {
      const SuccessorCallbacks callbacks{.explain = [this](RankExits& exits) { explain(exits); },
                                         .on_generation = [this] { oom_kills_.forget(); },
                                         .on_start = [this](int slot) { on_successor(slot); }};
      successors_.emplace(processes_, starts_, *rules_.replacing, specs_.size(), callbacks);
    }
  }

  WaitResult wait() {
    try {
      return processes_.wait_all(wait_rules());
    } catch (const Error&) {  // one that could not be started in place of another
      processes_.kill_all();
      throw;
    }
  }

  // Without Successors the callbacks about replacements stay empty, and the first failure ends all.
  WaitRules wait_rules() {
    WaitRules wait{
        .stop_on_failure = !goes_on(),
        .grace = rules_.shutdown_timeout,
        .until = rules_.until,
        .on_exit = [this](const ChildExit& exit) { on_exit(exit); },
        .account = [this](const ChildExit& exit) { return account_of(starts_.explained(exit)); },
        .describe = [this](pid_t pid, std::optional<int> slot) { return left_by(pid, slot); }};
    if (!successors_)
      return wait;
    wait.is_made_good = [this](const ChildExits& failed) {
      return successors_->follow(failed);
    };
    wait.awaits_others = [this] {
      return successors_->await_others();
    };
    wait.before_stop = [this] {
      return successors_->prepare_for_stop();
    };
    return wait;
  }

  // Another user listens on MASTER_PORT. The end of a job that ends anyway is not hurried: what its
  // ranks save now is worth more.
  void on_stranger(const std::string& stranger) {
    if (processes_.is_ending())
      return;
    fault_ = stranger;
    processes_.end_all_now();
  }

  // Called by the loop for each end, in the order of death.
  void on_exit(const ChildExit& exit) {
    early_end_->on_exit(exit);
    stopped_->on_exit(exit);
    if (exit.failed())
      port_.look();  // the failure may be the consequence
    --running_;
    if (running_ == 0 && !successors_)
      port_.stop();
    if (goes_on() && failed_unasked(exit))
      say_lost(starts_.in_short(exit), running_);
    const bool rank_is_to_blame = fault_.empty() && failed_unasked(exit);
    if (rules_.on_rank_failed && rank_is_to_blame)
      rules_.on_rank_failed(starts_.in_short(exit));
    if (successors_)
      successors_->on_exit(exit);
  }

  // Another process runs in the slot of a rank that failed.
  void on_successor(int slot) {
    stopped_->on_start(slot);
    ++running_;
  }

  // Ends that the launcher or the kernel caused say so.
  void explain(RankExits& exits) const {
    oom_kills_.explain(exits);
    stopped_->explain(exits);
  }

  // The ends that count, the cause first. One whose place another process took does not.
  RankExits exits_of(const WaitResult& ended) const {
    RankExits exits;
    for (const ChildExit& end : ended.exits) {
      const bool was_replaced = successors_ && successors_->have_followed(end);
      if (!was_replaced)
        exits.push_back(starts_.explained(end));
    }
    put_cause_first(exits, goes_on());
    explain(exits);
    if (successors_)
      successors_->explain(exits);
    name_source_lines(exits);
    return exits;
  }

  // "process 7435 (sh, state S) of rank 1". A daemon has no group of a rank, but its environment;
  // in that of a job inside the job, ranks are others.
  std::string left_by(pid_t pid, std::optional<int> slot) const {
    const auto entries = slot ? Strings() : environment_entries(pid);
    const auto has = [&](const std::string& entry) {
      return contains(entries, entry);
    };
    const bool is_of_job = !entries.empty() && all_of(marks_of(specs_), has);
    for (int at = 0; is_of_job && !slot && std::cmp_less(at, specs_.size()); ++at) {
      if (has(cat("RANK=", specs_[at].rank)))
        slot = at;
    }
    return cat(describe_process(pid), slot ? cat(" of rank ", starts_.rank_in(*slot)) : "");
  }

  // Processes that ranks started and left behind, and processes that even SIGKILL did not end.
  static void say_leftovers(const WaitResult& ended) {
    if (!ended.ended.empty()) {
      log_warning("ended processes that ranks had left behind: ",
                  join_first(ended.ended, ", ", kMostNamed));
    }
    if (!ended.killed.empty()) {
      log_warning("killed processes that ranks had left behind: ", join(ended.killed, ", "));
    }
    for (const auto& survivor : ended.survivors)
      log_error("could not end ", survivor, "; it is left to the system");
  }

  ProcessSet& processes_;
  const RankSpecs& specs_;
  const GroupRules& rules_;
  OomKills oom_kills_;
  Output output_;
  std::string fault_;  // why all were ended where no rank is the cause
  PortWatch port_;
  RankStarts starts_;
  size_t running_ = 0;  // processes
  std::optional<EarlyEnd> early_end_;
  std::optional<StoppedRanks> stopped_;
  std::optional<Successors> successors_;
};

// Waits until then. False: a signal came first, the time limit, or somebody who awaits the end.
bool pause_until(TimePoint then, ProcessSet& processes, const GroupRules& rules) {
  const auto until = std::min(then, rules.until.value_or(then));
  const auto is_over = [&] {
    return processes.stop_requested() != 0 || (rules.is_awaited && rules.is_awaited());
  };
  while (!is_over() && Clock::now() < until)
    processes.loop().run_once(until);
  return !is_over() && until == then;
}

// Returns when to try again, for ranks that have run before and find no processes now.
OptionalTime try_start(LocalRanks& ranks, const GroupRules& rules, ShortageWait& shortage) {
  try {
    ranks.start();
  } catch (const Shortage& why) {
    if (!rules.is_again)
      throw;
    return shortage.next_try(why);
  }
  return std::nullopt;
}

}  // namespace

GroupResult run_local_ranks(ProcessSet& processes,
                            const RankSpecs& specs,
                            const Ints& inherit_fds,
                            const GroupRules& rules) {
  processes.post_sentinel(marks_of(specs));
  LocalRanks ranks(processes, specs, inherit_fds, rules);
  ShortageWait shortage;
  OptionalTime next_try = try_start(ranks, rules, shortage);
  while (next_try && pause_until(*next_try, processes, rules))
    next_try = try_start(ranks, rules, shortage);
  return ranks.run();
}

}  // namespace muster
