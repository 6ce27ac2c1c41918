// A set of child processes that start, live and end together. It tells deaths in the order in which they
// happened, passes signals on, stops everything with a grace period, and leaves no descendant behind. Used by
// the launcher (and whoever runs programs); knows nothing of ranks. One at a time in a process: while it
// lives, the process is a subreaper, and every process that becomes its child counts as a descendant of the
// set. It also raises the limit of open files, which the children do not inherit.
#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/supervise/child.h"
#include "muster/supervise/child_exit.h"
#include "muster/supervise/event_loop.h"
#include "muster/supervise/parent_state.h"
#include "muster/supervise/sentinel.h"
#include "muster/supervise/signal_pipe.h"

namespace muster {

struct ProcessSetOptions {
  // Signals to this process that stop the set. SIGHUP is left alone when it was ignored at entry (nohup).
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  // Signals that are only passed on to the main processes.
  std::vector<int> pass_signals = {SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};
  // Why this process cannot be stopped by SIGTSTP (Ctrl-Z): said then, instead of stopping. Empty: it can,
  // and its children with it.
  std::string goes_on_because = {};
};

struct WaitRules {
  bool stop_on_failure = true;
  std::chrono::milliseconds grace{30'000};      // SIGTERM (or the signal received) → this → SIGKILL
  std::chrono::milliseconds kill_wait{5'000};   // SIGKILL → this → reported as not killable
  std::optional<Clock::time_point> until = {};  // then everything is stopped, as by SIGTERM
  std::function<void(const ChildExit&)> on_exit = {};
  // Whether a failure reads as the consequence of another's end: then that one, which may take a while to end
  // of itself, is waited for before the rest is stopped. Called several times.
  std::function<bool(const ChildExit&)> is_consequence = {};
  // Asked before a failure stops the rest, with all that failed together, the cause first: true where that
  // has been dealt with and the rest goes on, with what was spawned in their place. What they have left in
  // their process groups is killed then.
  std::function<bool(const std::vector<ChildExit>&)> is_made_good = {};
  // Whether others are to be spawned yet: then a set in which nothing runs goes on, and is_made_good is asked
  // of the last failures too.
  std::function<bool()> awaits_others = {};
  // Called before a stop signal or the time limit stops the set: members may still be spawned then. Returns
  // those that are not told of it before another has ended, where there are others.
  std::function<std::set<int>()> before_stop = {};
  // Where children are ended in another way than by a signal: called instead of passing the first stop signal
  // on. They have the grace all the same.
  std::function<void(int signal)> on_stop = {};
};

struct WaitResult {
  std::vector<ChildExit> exits;        // in the order of death
  int stopped_by = 0;                  // the stop signal received, if one was
  bool timed_out = false;              // WaitRules::until came first
  std::vector<std::string> killed;     // leftover descendants that only SIGKILL ended, in words
  std::vector<std::string> survivors;  // processes that even SIGKILL did not end, in words
};

class ProcessSet {
 public:
  explicit ProcessSet(ProcessSetOptions options = {});
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;
  ~ProcessSet();  // kills whatever is left

  // Where others (output, input) may wait beside the processes.
  EventLoop& loop() { return loop_; }

  // What is started from now on ends with this process, also when that is killed. `marks`: what all
  // descendants have in their environment (Sentinel). The first call counts; spawn makes one without marks.
  void post_sentinel(const std::vector<std::string>& marks = {});

  // Throws: what spawn_child throws; the processes started before live on.
  void spawn(int id, ChildOptions options);

  // Of the last member of that number that has not been waited for yet; -1: there is none.
  pid_t pid_of(int id) const;

  // Waits for the end of every process: all by themselves, or the first failure (or a stop signal) and then
  // everything stopped. A second SIGINT kills at once. Leftover descendants are ended too. A stop signal that
  // came while there were no processes counts.
  // Blocking: until nothing is left, or cannot be killed.
  WaitResult wait_all(const WaitRules& rules);

  // The stop signal that has come since the last wait_all; 0: none. Nothing should be started after one.
  int stop_requested();

  // Whether what is left is being ended already, for whatever reason.
  bool is_ending() const { return phase_ != Phase::running; }

  // Ends a wait_all that is going on, as a stop signal would: SIGTERM, grace, SIGKILL. What ends then does so
  // because of us (ChildExit::sent_signal). For callbacks of the loop.
  void end_all();

  // The same without grace.
  void end_all_now();

  // SIGKILL to everything now. Blocking: as wait_all's last step.
  WaitResult kill_all();

 private:
  enum class Phase { running, stopping, killing };
  struct Member {
    int id;
    Child child;
    EventLoop::Handle watch = 0;
    std::optional<ChildExit> exit;
    int sent_signal = 0;
    bool is_spared = false;  // is told of the end later, by spared_of
    int spared_of = 0;
  };

  void take_signals();
  void on_signal(int signal);
  void on_death(Member& member);
  bool stop_as_asked(int signal);  // false: a failure is the reason
  void stop(int signal);
  void tell_spared();
  void kill_now();
  static void tell(Member& member, int signal, bool to_end);
  void signal_mains(int signal, bool to_end);
  void signal_groups(int signal) const;
  void put_cause_first();
  bool make_good();
  bool on_timeout();
  bool awaits_an_end() const;
  bool awaits_a_cause() const;
  size_t num_running() const;
  bool goes_on() const;
  WaitResult finish();
  void sweep();
  bool is_in_a_group(pid_t pid) const;
  std::set<pid_t> left_behind() const;
  std::vector<std::string> describe_all(const std::set<pid_t>& leftovers) const;

  ProcessSetOptions options_;
  EventLoop loop_;
  std::optional<SignalPipe> signals_;
  std::optional<ParentState> parent_;
  std::unique_ptr<Sentinel> sentinel_;
  bool sentinel_failed_ = false;
  std::vector<std::unique_ptr<Member>> members_;

  WaitRules rules_;
  WaitResult result_;
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t first_failure_ = kNone;  // in result_.exits, while others are awaited that may be its cause
  size_t made_good_ = 0;          // of result_.exits: these ends are of no more consequence
};

}  // namespace muster
