// This machine as a host that tasks run on: their processes are this process's children. For the
// runner, and for the server through which another machine's runner reaches this one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/lists.h"
#include "muster/tasks/hosts/foreign_leases.h"
#include "muster/tasks/hosts/memory_watch.h"
#include "muster/tasks/hosts/task_host.h"
#include "muster/tasks/hosts/task_process.h"

namespace muster {

struct LocalHostOptions {
  TaskRunFacts facts{};
  std::string run_id{};
  int host = 0;                   // which host of the pool it is; -1: none
  ForeignLeases::Tell on_held{};  // told what other jobs have of its GPUs
  MemoryWatch::Tell on_memory{};  // told what other programs use of their memory
  SignalFunction on_pass{};       // called before a signal is passed on
  // Whether a child of this process is none of its tasks.
  std::function<bool(pid_t pid)> is_foreign{};
};

class LocalHost : public TaskHost {
 public:
  // `pool` must outlive it. Throws: as ProcessPool and LeaseFolder.
  LocalHost(const DevicePool& pool, LocalHostOptions options);

  EventLoop& loop() { return processes_.loop(); }

  // Takes its leases.
  bool reserve(const StartOrder& order) override;
  void start(const StartOrder& order) override;
  void end(int id, milliseconds grace) override { processes_.end(id, grace); }
  std::string held() const override;

  // Waits as ProcessPool::wait does. The leases of the tasks that have ended are given back. A task
  // that may have left processes which live on keeps its leases until these have ended.
  TaskEnds wait(OptionalTime until);

  std::optional<int> take_signal() { return processes_.take_signal(); }

  // Sends all tasks a signal that is only passed on.
  void signal_all(int signal) { processes_.signal_children(signal); }

  // Waits for children that came to this process, and have ended.
  void reap_orphans() { processes_.reap_orphans(); }

  // Looks at what other jobs hold, now and then.
  void look() { foreign_.look(); }

  // Looks at what other programs use of its GPUs' memory, now and then.
  void look_at_memory();

  // Forgets the leases of an order that did not start.
  void forget(int id) { leases_.erase(id); }

 private:
  struct Running {  // a task that has GPUs
    std::string task;
    Ints gpus;      // the pool's
    int units = 0;  // of each
    Leases leases{};
  };
  struct Kept {  // of a task that has ended, but not all that it started
    Running had;
    std::vector<ProcessId> processes;
    std::string by;  // in words
  };
  struct Foreign {
    int units = 0;
    std::string by;
  };

  Leases leases_of(int id);
  bool ran_out_of_memory() const;
  void take_shortage(TaskEnd& end);
  void take_back(const PoolExit& exit);
  static void end_leases(Running& had);
  void look_at_kept();
  void on_held(int gpu, int units, const std::string& by);
  void tell_held(int gpu) const;

  const DevicePool& pool_;
  LocalHostOptions options_;
  ProcessPool processes_;
  ForeignLeases foreign_;
  MemoryWatch memory_;
  std::unordered_map<int, Leases> leases_;      // by order that has not started yet
  std::unordered_map<int, Running> running_;    // by order
  std::unordered_map<int, std::string> notes_;  // by order whose ranks have a launcher: its note
  std::vector<Kept> kept_;
  std::map<int, Foreign> foreign_units_;  // by GPU: what other jobs have of it
  Fd no_input_;                           // every task's standard input
  std::optional<int64_t> oom_kills_;
};

// The end that an Error at a start comes to, with the shell's code for a program that is not there.
TaskEnd end_without_start(int id, const Error& error);

}  // namespace muster
