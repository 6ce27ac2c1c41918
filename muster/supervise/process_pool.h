// Child processes that come and go, each with a life of its own: started at any time, told of when it has
// ended with all that it had started, ended alone. Used by the tasks runner; for children that live and end
// together see ProcessSet. One at a time in a process: while it lives, the process is a subreaper, and every
// process that becomes its child belongs to it. It costs little a child, so thousands can be started in a
// second.
#pragma once

#include <signal.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "muster/supervise/child.h"
#include "muster/supervise/child_exit.h"
#include "muster/supervise/event_loop.h"
#include "muster/supervise/leftovers.h"
#include "muster/supervise/parent_state.h"
#include "muster/supervise/sentinel.h"
#include "muster/supervise/signal_pipe.h"

namespace muster {

struct ProcessPoolOptions {
  // Signals to this process that are kept for take_signal. SIGHUP is left alone when it was ignored at entry.
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::vector<int> pass_signals = {SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};  // only passed on to the children
  std::string mark = {};            // "NAME=value" in every child's environment, and in no other's
  std::string child_variable = {};  // the variable that tells the children apart: its value is a child's name
  std::function<void(int signal)> on_pass = {};  // told of one of pass_signals, before it is passed on
  // Of a child of this process: it is somebody else's affair, as those that were there before the pool.
  std::function<bool(pid_t pid)> is_foreign = {};
  std::chrono::milliseconds ask_leftovers = kAskLeftovers;
  std::chrono::milliseconds kill_wait{5'000};  // SIGKILL → this → given up
};

// A child that has ended, with all that it had started.
struct PoolExit {
  ChildExit exit = {};
  std::vector<std::string> killed = {};     // what it left that only SIGKILL ended, in words
  std::vector<std::string> survivors = {};  // processes that even SIGKILL did not end, in words
};

class ProcessPool {
 public:
  explicit ProcessPool(ProcessPoolOptions options = {});
  ProcessPool(const ProcessPool&) = delete;
  ProcessPool& operator=(const ProcessPool&) = delete;
  ~ProcessPool();  // kills whatever is left

  // Where others may wait beside the processes.
  EventLoop& loop() { return loop_; }

  // `name` is the value of child_variable in the child's environment. Throws: what spawn_child throws.
  pid_t spawn(int id, const std::string& name, ChildOptions options);

  // Asks a child to end: SIGTERM, and after `grace` SIGKILL to all of it. One that has ended is let be.
  void end(int id, std::chrono::milliseconds grace);

  // Waits until something has happened or `until` has come. Returns the children that have ended, in the
  // order of their ends. Blocking: until then.
  std::vector<PoolExit> wait(std::optional<Clock::time_point> until);

  // Sends all children a signal; what has to do with the terminal, their groups.
  void signal_children(int signal);

  // Waits for what came to this process as its subreaper and has ended: where no member ends, nobody else
  // does.
  void reap_orphans() { left_behind(); }

  // The next of stop_signals that has come.
  std::optional<int> take_signal();

  // Children that have not been returned by `wait`.
  size_t size() const { return members_.size(); }

 private:
  struct Member {
    int id = 0;
    std::string name;
    Child child;
    EventLoop::Handle watch = 0;
    int sent_signal = 0;
    std::optional<Clock::time_point> kill_at = {};  // when it is asked to end; then when to give up
    bool killing = false;
    PoolExit end = {};
    bool has_ended = false;
    LeftoverSweep leftovers = {};
  };

  void take_signals();
  void pass_on(int signal);
  void on_death(Member& member);
  void insist(Clock::time_point now);
  std::vector<PoolExit> settle(Clock::time_point now);
  std::set<pid_t> left_behind() const;
  bool is_of(pid_t pid, const Member& member) const;
  bool sweep(Member& member, const std::set<pid_t>& left, Clock::time_point now);
  void forget(int id);
  void kill_everything();

  ProcessPoolOptions options_;
  EventLoop loop_;
  std::optional<SignalPipe> signals_;
  std::vector<int> stops_;
  std::optional<ParentState> parent_;
  std::unique_ptr<Sentinel> sentinel_;
  ChildList children_;
  std::unordered_map<int, std::unique_ptr<Member>> members_;
  std::set<int> ending_;    // asked to end and not dead yet
  std::vector<int> ended_;  // dead, in order; perhaps with leftovers
};

}  // namespace muster
