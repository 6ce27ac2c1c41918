// A task of a TaskSet: what its function is told, where its result is kept, and both without types.
// For task_set.h and for the code that runs tasks.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "muster/placement/plan.h"

namespace muster {

class Context;
class OwnLoaders;

enum class TaskMode {
  thread,   // in a thread of this process
  process,  // in a child process: this program, started again
  group,    // as ranks of a process group, each in a child process (add_group)
};

struct TaskOptions {
  // "": any free GPU, or a CPU slot on a machine without GPUs. "cpu": a CPU slot. Otherwise the
  // grammar of `muster run --gpus` ("0", "GPU-8f3c", "0-3"); if it names several, any free one of
  // them.
  std::string device{};
  // Use the CPU if there is no such device; logged, and noted in TaskOutcome.
  bool allow_cpu = false;
};

struct TaskGroupOptions {
  std::optional<int> ranks{};  // nothing: one per device
  // Where its ranks may run, as in TaskOptions::device: on the first `ranks` of these that are
  // free, in this order. "cpu": CPU slots.
  std::string devices{};
  bool allow_cpu = false;        // with too few such devices run all ranks on the CPU; logged
  std::string backend = "auto";  // as RunOptions::backend
};

// What a task knows while it runs.
class TaskContext {
 public:
  struct Parts {
    std::string name;
    c10::Device device = c10::kCPU;
    std::string place;
    uint64_t number = 0;
    const std::atomic<int>* stop = nullptr;
    RankPlan assignment{};  // a plan's entry for its device
  };
  explicit TaskContext(Parts parts) : parts_(std::move(parts)) {}

  const std::string& name() const { return parts_.name; }
  c10::Device device() const { return parts_.device; }       // torch's: "cuda:1", "cpu"; current
  const std::string& place() const { return parts_.place; }  // in words: "GPU 1", "CPU slot 0"
  // The index of its GPU as `muster devices` counts; nothing on a CPU slot.
  std::optional<int> gpu() const { return gpu_index(parts_.assignment.device); }

  // A seed that differs for every task of the set and is the same in every run.
  uint64_t seed(uint64_t base) const { return base + parts_.number; }

  // Whether another task has failed in a set with fail_fast: then return soon, or throw.
  bool stop_requested() const { return parts_.stop->load(std::memory_order_relaxed) != 0; }

  // What loaders, checkpoints, metrics and training steps take: the Context of a job with this task
  // as its only rank, made at the first call. It has no run folder, and its stop_requested() is
  // this one too.
  Context& context();

  // Ends the group of that Context in good order, when the function has returned.
  void leave();

 private:
  Parts parts_;
  std::shared_ptr<Context> context_;
  std::shared_ptr<OwnLoaders> own_loaders_;  // the task stops as a job does
};

namespace detail {

template <class R>
inline constexpr bool kCrossesProcesses =
    std::is_void_v<R> || std::is_arithmetic_v<R> || std::is_same_v<R, std::string>;

// Numbers are sent as in memory: both sides are the same program on the same machine.
template <class R>
std::string to_bytes(const R& value) {
  if constexpr (std::is_same_v<R, std::string>) {
    return value;
  } else if constexpr (std::is_arithmetic_v<R>) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  } else {
    return {};
  }
}

// Throws: internal if the bytes are not such a value.
[[noreturn]] void fail_wrong_bytes(size_t expected, size_t got);
template <class R>
R from_bytes(const std::string& bytes) {
  if constexpr (std::is_same_v<R, std::string>) {
    return bytes;
  } else {
    R value{};
    if constexpr (std::is_arithmetic_v<R>) {
      if (bytes.size() != sizeof(value))
        fail_wrong_bytes(sizeof(value), bytes.size());
      std::memcpy(&value, bytes.data(), sizeof(value));
    }
    return value;
  }
}

[[noreturn]] void fail_not_run(const std::string& name);

// Keeps a task's result: the thread that runs the task stores it, and it is read after all tasks
// have ended.
template <class R>
struct TaskCell {
  using Value = std::conditional_t<std::is_void_v<R>, std::monostate, R>;
  explicit TaskCell(std::string task) : name(std::move(task)) {}
  std::string name;
  std::optional<Value> value{};
  std::exception_ptr error{};
};

struct TaskEntry {
  std::string name{};
  TaskOptions options{};
  TaskMode mode = TaskMode::thread;
  std::optional<int> ranks = 1;                          // nothing: one per device
  std::string backend{};                                 // of a group
  std::function<void(TaskContext&)> call{};              // keeps the result
  std::function<void(Context&)> call_rank{};             // of a group, instead of `call`
  std::function<void(std::exception_ptr)> fail{};        // keeps the error
  std::function<std::string()> result_bytes{};           // of a process or rank
  std::function<void(const std::string&)> take_bytes{};  // keeps what these sent as the result
};

using TaskEntries = std::vector<TaskEntry>;

// Wraps `fn` in a call that keeps its result. Copies of the std::function share `fn`, so it need
// not be copyable.
template <class Argument, class F, class R>
std::function<void(Argument&)> keeping_result(F fn, const std::shared_ptr<TaskCell<R>>& cell) {
  return [cell, fn = std::make_shared<F>(std::move(fn))](Argument& argument) {
    if constexpr (std::is_void_v<R>) {
      (*fn)(argument);
      cell->value.emplace();
    } else {
      cell->value.emplace((*fn)(argument));
    }
  };
}

template <class R>
TaskEntry make_entry(const std::string& name,
                     TaskMode mode,
                     const std::shared_ptr<TaskCell<R>>& cell) {
  using Value = typename TaskCell<R>::Value;
  TaskEntry entry{.name = name, .mode = mode};
  entry.fail = [cell](const std::exception_ptr& error) {
    cell->error = error;
  };
  if constexpr (kCrossesProcesses<R>) {
    entry.result_bytes = [cell] {
      return to_bytes<Value>(*cell->value);
    };
    entry.take_bytes = [cell](const std::string& bytes) {
      cell->value.emplace(from_bytes<Value>(bytes));
    };
  }
  return entry;
}

}  // namespace detail

}  // namespace muster
