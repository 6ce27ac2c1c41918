// Child processes that come and go independently. Each can be started at any time and ended alone,
// and is reported when it has ended together with everything that it started. Used by the tasks
// runner; for children that live and end together see ProcessSet. A process may have only one at a
// time: while it lives, the process is a subreaper, and every process that becomes its child
// belongs to it. A child costs little, so thousands can be started in a second.
#pragma once

#include <signal.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/lists.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
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

struct ProcessPoolOptions {
  // Signals to this process that take_signal returns. SIGHUP is ignored if it was ignored at entry.
  Ints stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  // Signals that are only passed on to the children.
  Ints pass_signals = {SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};
  std::string mark{};            // "NAME=value" in every child's environment, and in no other's
  std::string child_variable{};  // the variable whose value is a child's name
  SignalFunction on_pass{};      // called before one of pass_signals is passed on
  // Whether a child of this process belongs to someone else: the pool ignores it, like children
  // that existed before the pool.
  std::function<bool(pid_t pid)> is_foreign{};
  milliseconds ask_leftovers = kAskLeftovers;
  milliseconds kill_wait{5'000};  // after SIGKILL, before it is given up
};

// A child that has ended, together with everything that it started, but for `alive`.
struct PoolExit {
  ChildExit exit{};
  // Descriptions of what it left that SIGTERM was enough for, where nobody had asked it to end.
  Strings ended{};
  Strings killed{};     // descriptions of what it left that needed SIGKILL
  Strings survivors{};  // descriptions of processes that survived even SIGKILL
  // Descriptions of processes that this child has left, or another that still runs: they show
  // neither. They are ended when the last of the children ends that may have left them.
  Strings unclear{};
  std::vector<ProcessId> alive{};  // the survivors and the unclear ones
};

using PoolExits = std::vector<PoolExit>;

class ProcessPool : NoCopy {
 public:
  explicit ProcessPool(ProcessPoolOptions options = {});
  ~ProcessPool();  // kills whatever is left

  // The event loop, for others that wait beside the processes.
  EventLoop& loop() { return loop_; }

  // `name` is the value of child_variable in the child's environment. Throws: what spawn_child
  // throws.
  pid_t spawn(int id, const std::string& name, ChildOptions options);

  // Asks a child to end with SIGTERM; after `grace`, sends SIGKILL to everything it started. Does
  // nothing if it has ended.
  void end(int id, milliseconds grace);

  // Waits until something has happened or `until` is reached. Returns the children that have ended,
  // in order of their ends. Blocking: until then.
  PoolExits wait(OptionalTime until);

  // Sends a signal to all children; job-control signals (SIGTSTP, SIGCONT) go to their process
  // groups. SIGUSR1 and SIGUSR2 are requests, of which no process is to end: each that runs now
  // gets them once it catches them.
  void signal_children(int signal);

  // Whether a process that `wait` named in `alive` has not ended yet. Reaps it when it has.
  static bool is_alive(const ProcessId& process);

  // Reaps ended processes that this process inherited as subreaper. Needed only while no member
  // ends.
  void reap_orphans() { left_behind(); }

  // The next stop signal received, if any.
  std::optional<int> take_signal();

  // Children that `wait` has not returned yet.
  size_t size() const { return members_.size(); }

 private:
  struct Member {
    int id = 0;
    std::string name;
    Child child;
    uint64_t began = 0;  // process_start_ticks
    // The files that it writes to and was given open; the processes that it starts have them too.
    FileIds outputs;
    EventLoop::Handle watch = 0;
    int sent_signal = 0;
    // The end of the grace period once it was asked to end; after SIGKILL, when to give it up.
    OptionalTime kill_at{};
    bool killing = false;
    PoolExit end{};
    bool has_ended = false;
    LeftoverSweep leftovers;
  };

  void take_signals();
  void pass_on(int signal);
  Pids running() const;
  void on_death(Member& member);
  void note_ended(Member& member);
  void insist(TimePoint now);
  void note_unkillable(Member& member, TimePoint now);
  PoolExits settle(TimePoint now);
  Pids left_behind();
  // For each process that was left behind: the members of which one has started it.
  using Suspects = std::map<pid_t, std::set<const Member*>>;
  // The processes that were left behind, as one member sees them.
  struct Leftovers {
    Pids own;
    Pids unclear;  // another member that still runs may have started them
  };
  Suspects suspects_of(const Pids& left) const;
  std::set<const Member*> suspects_of(pid_t pid) const;
  const Member* member_shown_by(pid_t pid) const;
  static Leftovers leftovers_of(const Member& member, const Suspects& left);
  bool sweep(Member& member, const Suspects& left, TimePoint now);
  void give_up(Member& member, const Pids& pids);
  void forget(int id);
  Pids kill_members();
  void kill_everything();

  ProcessPoolOptions options_;
  EventLoop loop_;
  SignalPipe signals_;
  Ints stops_;
  Requests requests_;
  ParentState parent_;
  std::unique_ptr<Sentinel> sentinel_;
  ChildList children_;
  std::unordered_map<int, std::unique_ptr<Member>> members_;
  IntSet ending_;  // asked to end and not dead yet
  Ints ended_;     // dead, in order; perhaps with leftovers
  Pids given_up_;  // survivors, which have been told
};

}  // namespace muster
