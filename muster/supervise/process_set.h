// A set of child processes that start, live and end together. It reports deaths in order, passes
// signals on, stops everything with a grace period, and leaves no descendant behind. Used by the
// launcher (and other code that runs programs); knows nothing of ranks. A process may have only one
// at a time: while it lives, the process is a subreaper, and every process that becomes its child
// counts as a descendant of the set. The set also raises the open-file limit; the children do not
// inherit the raised limit.
#pragma once

#include <signal.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/lists.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/supervise/cause.h"
#include "muster/supervise/child.h"
#include "muster/supervise/child_exit.h"
#include "muster/supervise/descendants.h"
#include "muster/supervise/event_loop.h"
#include "muster/supervise/leftovers.h"
#include "muster/supervise/parent_state.h"
#include "muster/supervise/requests.h"
#include "muster/supervise/sentinel.h"
#include "muster/supervise/signal_pipe.h"

namespace muster {

struct ProcessSetOptions {
  // Signals to this process that stop the set. SIGHUP is ignored if it was ignored at entry
  // (nohup).
  Ints stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  // Signals that are only passed on to the main processes.
  Ints pass_signals = {SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};
  // Why SIGTSTP (Ctrl-Z) cannot stop this process; logged when SIGTSTP arrives. Empty: SIGTSTP
  // stops this process and its children.
  std::string goes_on_because{};
  // Called instead of passing on one of `pass_signals`, also while nothing runs.
  SignalFunction on_pass{};
};

struct WaitRules {
  bool stop_on_failure = true;
  milliseconds grace{30'000};     // between SIGTERM (or the signal received) and SIGKILL
  milliseconds kill_wait{5'000};  // after SIGKILL, before it is reported as unkillable
  OptionalTime until{};           // then everything is stopped, as by SIGTERM
  std::function<void(const ChildExit&)> on_exit{};
  // What a process that failed has told of why. If all that failed have lost another, that one may
  // take a while to die; the set waits for it before it stops the rest. Called several times.
  std::function<Account(const ChildExit&)> account{};
  // Called before a failure stops the rest, with all failures that came together, the cause first.
  // Returns true if they have been handled (for example by spawning replacements): the rest then
  // goes on, and what the failed processes left in their process groups is killed.
  std::function<bool(const ChildExits&)> is_made_good{};
  // Whether more processes will be spawned. If so, the set goes on even when nothing runs, and
  // is_made_good is called for the last failures too.
  Condition awaits_others{};
  // Called before a stop signal or the time limit stops the set; it may still spawn members.
  // Returns the members that are to end by themselves: they are stopped only after another member
  // has ended, after end_all(), or when half of the time that they have left is over.
  std::function<IntSet()> before_stop{};
  // Describes a process that a member has started and left behind; `id` is the member's, if the
  // process is in its process group. Without it, describe_process().
  std::function<std::string(pid_t pid, std::optional<int> id)> describe{};
  // Called instead of passing on the first stop signal, for children that are stopped by other
  // means than a signal. The grace period still applies.
  SignalFunction on_stop{};
  // Called instead of passing on any other signal, for such children. A second SIGINT is SIGKILL
  // here; the children then have kill_wait to end.
  SignalFunction pass_on{};
};

struct WaitResult {
  // In order of death, but the cause before the failures that came together with it.
  ChildExits exits;
  int stopped_by = 0;      // the stop signal received, if any
  bool timed_out = false;  // WaitRules::until was reached
  Strings killed;          // descriptions of leftover descendants that needed SIGKILL
  // Descriptions of those that SIGTERM was enough for, where the set has ended by itself.
  Strings ended;
  Strings survivors;  // descriptions of processes that survived even SIGKILL
};

class ProcessSet : NoCopy {
 public:
  explicit ProcessSet(ProcessSetOptions options = {});
  ~ProcessSet();  // kills whatever is left

  // The event loop, for others (output, input) that wait beside the processes.
  EventLoop& loop() { return loop_; }

  // Everything started from now on ends with this process, even if this process is killed. `marks`:
  // what all descendants have in their environment (Sentinel). Only the first call counts; without
  // one, spawn posts a sentinel without marks.
  void post_sentinel(const Strings& marks = {});

  // Starts a child. Throws: what spawn_child throws; processes started before live on.
  void spawn(int id, ChildOptions options);

  // The process id of the newest member with this id that is not waited for yet; -1: none.
  pid_t pid_of(int id) const;

  // Lets go of a member that has ended, and that others have taken the place of: nothing is told of
  // its end any more, and what it left in its process group is killed.
  void forget(pid_t pid);

  // Waits until every process has ended. The first failure or a stop signal stops all of them; a
  // second SIGINT kills at once. Leftover descendants are ended too. A stop signal that arrived
  // while there were no processes counts. Blocking: until nothing is left, or what is left cannot
  // be killed.
  WaitResult wait_all(const WaitRules& rules);

  // The stop signal received since the last wait_all; 0: none. Start nothing after one.
  int stop_requested();

  // Whether the remaining processes are already being stopped, for any reason.
  bool is_ending() const { return phase_ != Phase::running; }

  // Ends a wait_all in progress, as a stop signal would: SIGTERM, grace, SIGKILL. Processes that
  // end after this were ended by us (ChildExit::sent_signal). For callbacks of the loop.
  void end_all();

  // The same for processes that are asked to stop, and may come together before they do:
  // before_stop is called first.
  void ask_all_to_stop();

  // Whether they stop because they were asked to, and have time left: more may be spawned, which
  // are stopped as those that before_stop returns.
  bool stops_as_asked() const { return phase_ == Phase::stopping && is_asked_; }

  // The same without the grace period.
  void end_all_now();

  // Sends the signal to the children as if this process had got it to pass it on; SIGKILL ends all
  // now. SIGUSR1 and SIGUSR2 are requests, of which no process is to end: each that runs gets them
  // once it catches them. While none runs, or all are being ended, they are for those that wait_all
  // finds next.
  void tell_all(int signal);

  // Sends SIGKILL to everything now. Blocking: as wait_all's last step. A stop signal that came
  // before stays one for stop_requested.
  WaitResult kill_all();

 private:
  enum class Phase { running, stopping, killing };
  struct Member {
    int id;
    Child child;
    EventLoop::Handle watch = 0;
    std::optional<ChildExit> exit;
    int sent_signal = 0;
    IntSet told{};             // signals that it was sent to end it
    bool was_exiting = false;  // when it was first told to
    bool is_spared = false;    // stopped later, with the signal spared_of
    int spared_of = 0;
  };

  void take_signals();
  void on_signal(int signal);
  void on_stop_signal(int signal);
  void on_death(Member& member);
  bool stop_as_asked(int signal);  // false: a failure is the reason
  void stop(int signal);
  void spare_for_half_the_time();
  void tell_spared();
  void kill_as_asked();
  void kill_now();
  void pass_on(int signal);
  static void tell(Member& member, int signal, bool to_end);
  void signal_mains(int signal, bool to_end);
  void signal_groups(int signal) const;
  void tell_requests();
  void put_cause_first();
  End evidence(const ChildExit& exit) const;
  bool make_good();
  void stop_at_time_limit(TimePoint now);
  bool on_timeout();
  bool awaits_an_end() const;
  bool awaits_a_cause() const;
  std::vector<Member*> running() const;
  bool goes_on() const;
  WaitResult finish();
  void sweep();
  void ask(LeftoverSweep& leftovers, const Pids& left, bool groups_too) const;
  std::string describe(pid_t pid) const;
  std::optional<int> group_of(pid_t pid) const;
  Pids left_behind() const;
  Strings describe_all(const Pids& leftovers) const;

  ProcessSetOptions options_;
  EventLoop loop_;
  SignalPipe signals_;
  ParentState parent_;
  std::unique_ptr<Sentinel> sentinel_;
  bool sentinel_failed_ = false;
  std::vector<std::unique_ptr<Member>> members_;

  WaitRules rules_;
  WaitResult result_;
  Phase phase_ = Phase::running;
  bool is_asked_ = false;  // to stop; no failure is why, and more may be spawned
  bool has_passed_kill_on_ = false;
  Requests requests_;
  bool is_waiting_ = false;  // in wait_all
  OptionalTime deadline_;
  EventLoop::Handle half_time_ = 0;
  static constexpr std::ptrdiff_t kNone = -1;
  std::ptrdiff_t first_failure_ = kNone;  // in result_.exits; those that came with it follow
  std::ptrdiff_t made_good_ = 0;          // in result_.exits: ends before this were handled
};

}  // namespace muster
