// Different tasks on different devices, in one program: named functions, each with its own device.
//
//   muster::TaskSet tasks;
//   auto a = tasks.add("linear", {.device = "0"}, [](muster::TaskContext& task) {
//     return train(task);
//   });
//   auto b = tasks.add("mlp", {.device = "1", .allow_cpu = true}, ...);
//   tasks.run();
//   use(a.result(), b.result());
//
// A task may also be several ranks that work together (add_group); if that is all a program does,
// see run.h. How tasks run, and on which device, is in task_dispatch.h, task_plan.h, task_child.h
// and task_group.h.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <concepts>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/strings.h"
#include "muster/run/task_entry.h"

namespace muster {

struct TaskOrder;  // task_child.h

struct TaskSetOptions {
  int per_device = 1;  // tasks on one device at a time; the others wait in the order of add
  // After a failure start no more tasks, ask the others to stop, and end groups.
  bool fail_fast = false;
  int cpu_slots = 0;  // tasks on the CPU at a time, times per_device; 0: MUSTER_CPU_SLOTS, else 2
  bool lease = true;  // lease every GPU that tasks use, as `muster run` does
  // How long to wait for GPUs that other jobs hold, if tasks can use no others and not the CPU;
  // nothing: do not wait.
  std::optional<std::chrono::milliseconds> wait{};
};

// The result of add. It may outlive its set.
template <class R>
class TaskHandle {
 public:
  explicit TaskHandle(std::shared_ptr<const detail::TaskCell<R>> cell) : cell_(std::move(cell)) {}

  // The function's return value, in a group that of rank 0; nothing for void.
  // Throws: the function's own exception; for a task in a process, Error(peer_failed) with its text
  // or the signal that ended it, and in a group with the rank's number and device;
  // failed_precondition for a task that has not run.
  std::conditional_t<std::is_void_v<R>, void, std::add_lvalue_reference_t<const R>> result() const {
    if (cell_->error)
      std::rethrow_exception(cell_->error);
    if (!cell_->value)
      detail::fail_not_run(cell_->name);
    if constexpr (!std::is_void_v<R>)
      return *cell_->value;
  }

 private:
  std::shared_ptr<const detail::TaskCell<R>> cell_;
};

// The outcome of a task, for tables and logs.
struct TaskOutcome {
  enum class State { not_started, running, done, failed };
  std::string name{};
  State state = State::not_started;
  std::string place{};             // "GPU 1", "CPU slot 0", "GPU 0, GPU 1"; empty: not started
  c10::Device device = c10::kCPU;  // as the task sees it; in a group, as rank 0 sees it
  // Why it ran on the CPU although another device was wanted; empty: it did not.
  std::string instead{};
  TaskMode mode = TaskMode::thread;
  std::string error{};  // of a failed task
  double seconds = 0;
};

class TaskSet {
 public:
  // Uses this machine's devices as `muster devices` shows them, without those hidden by
  // CUDA_VISIBLE_DEVICES. With MUSTER_INVENTORY it uses that machine instead, and all tasks compute
  // on the CPU.
  explicit TaskSet(TaskSetOptions options = {}) : options_(options) {}

  // For tasks in processes: starts the program with its arguments again for each of them. Code
  // before `run` runs there too, so it must add the same tasks in the same order. In a child that
  // is to start a group's ranks, the constructor does that and ends the process; it does not
  // return.
  TaskSet(int argc, char** argv, TaskSetOptions options = {});

  // Adds a task; nothing runs yet. `fn` is called with a TaskContext&, or with a Context& of a
  // single rank if it takes that (TaskContext::context), with its device current in the thread.
  //
  // thread: runs in a thread of this process. Tasks share LibTorch's default generator. If a
  // model's weights should be the same in every run, create it earlier, or with its own generator.
  // Intra-op threads are divided among the tasks that run at the same time.
  //
  // process: add<TaskMode::process>(...) runs it in a child process that sees only its own GPU. A
  // crash affects only this task. The result (a std::string, a number or nothing) is returned as
  // bytes.
  //
  // Throws: invalid_argument for a name that is empty or taken; failed_precondition after run, and
  // for a process in a set made without argc and argv.
  template <TaskMode mode = TaskMode::thread, class F>
  auto add(const std::string& name, TaskOptions options, F fn) {
    static_assert(mode != TaskMode::group, "for ranks of a group there is add_group");
    if constexpr (std::invocable<F&, TaskContext&>) {
      return add_task<mode>(name, std::move(options), std::move(fn));
    } else {
      static_assert(std::invocable<F&, Context&>, "a task takes a TaskContext& or a Context&");
      return add_task<mode>(name,
                            std::move(options),
                            [fn = std::move(fn)](TaskContext& task) mutable -> decltype(auto) {
                              return fn(task.context());
                            });
    }
  }

  // Adds a task that consists of the ranks of a process group. Each is a child process with its own
  // device, started and supervised as by muster::run. Every rank calls `fn` with a Context&
  // (context.h). The result is what rank 0 returns: a std::string, a number or nothing. The first
  // failure of a rank is the task's error, and ends the others. The task starts when enough devices
  // are free at the same time; free devices are reserved for it. Its folder is runs/<id>, as for
  // muster::run. Throws: as add for a process; invalid_argument for fewer than one rank.
  template <class F>
  auto add_group(const std::string& name, TaskGroupOptions options, F fn) {
    using R = std::decay_t<std::invoke_result_t<F&, Context&>>;
    static_assert(
        detail::kCrossesProcesses<R>,
        "ranks return a std::string, a number or nothing: other values cannot be sent back; write "
        "them to a file and return its name");
    auto cell = std::make_shared<detail::TaskCell<R>>(name);
    detail::TaskEntry entry = detail::make_entry(name, TaskMode::group, cell);
    entry.options = {.device = std::move(options.devices), .allow_cpu = options.allow_cpu};
    entry.ranks = options.ranks;
    entry.backend = std::move(options.backend);
    entry.call_rank = detail::keeping_result<Context>(std::move(fn), cell);
    add_entry(std::move(entry));
    return TaskHandle<R>(cell);
  }

  // Runs all tasks: at the same time on different devices, in the order of add on the same device.
  // A failed task does not stop the others, unless fail_fast. In a child started for one task, it
  // runs that task and ends the process; it does not return. GPUs held by another job count as
  // absent. Leases are kept until all tasks have ended; a process that got its devices from a
  // launcher uses the launcher's leases. Blocking: until every task has ended. Throws: before
  // anything is started, invalid_argument and unavailable, naming a task, its device and what there
  // is; failed_precondition when called twice; after all tasks have ended, Error(peer_failed)
  // naming every task that failed.
  void run();

  // The outcome of every task, in the order of add.
  std::vector<TaskOutcome> outcomes() const { return outcomes_; }

 private:
  template <TaskMode mode, class F>
  auto add_task(const std::string& name, TaskOptions options, F fn) {
    using R = std::decay_t<std::invoke_result_t<F&, TaskContext&>>;
    static_assert(mode != TaskMode::process || detail::kCrossesProcesses<R>,
                  "a task in a process returns a std::string, a number or nothing: other values "
                  "cannot be sent back; write them to a file and return its name");
    auto cell = std::make_shared<detail::TaskCell<R>>(name);
    detail::TaskEntry entry = detail::make_entry(name, mode, cell);
    entry.options = std::move(options);
    entry.call = detail::keeping_result<TaskContext>(std::move(fn), cell);
    add_entry(std::move(entry));
    return TaskHandle<R>(cell);
  }

  void add_entry(detail::TaskEntry entry);
  [[noreturn]] void run_as_child(const TaskOrder& order);
  [[noreturn]] void run_as_rank(const TaskOrder& order);
  const detail::TaskEntry& entry_of(const TaskOrder& order) const;
  Strings names() const;
  void throw_failures() const;

  TaskSetOptions options_;
  Strings argv_;  // empty: no tasks in processes
  detail::TaskEntries entries_;
  std::vector<TaskOutcome> outcomes_;
  bool has_run_ = false;
};

}  // namespace muster
