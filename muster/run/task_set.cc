// A TaskSet knows what each task computes; where and when is decided elsewhere (task_plan.h,
// task_dispatch.h). A child process of a task comes through main() to the same set, adds the same
// tasks, and finds in its environment which of them it is for: there run() does not return.
#include "muster/run/task_set.h"

#include <stdlib.h>

#include <cstdlib>
#include <map>
#include <thread>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"
#include "muster/placement/plan_json.h"
#include "muster/run/context.h"
#include "muster/run/error_file.h"
#include "muster/run/own_program.h"
#include "muster/run/run.h"
#include "muster/run/run_calls.h"
#include "muster/run/task_child.h"
#include "muster/run/task_dispatch.h"
#include "muster/run/task_group.h"
#include "muster/run/task_plan.h"
#include "muster/supervise/first_process.h"

namespace muster {

namespace detail {

void fail_wrong_bytes(size_t expected, size_t got) {
  throw Error(ErrorCode::internal, "tasks: expected a result of ", expected, " bytes, got ", got);
}

void fail_not_run(const std::string& name) {
  throw failed_precondition("task '",
                            printable(name),
                            "': expected a result, got none: it has not run; call run() first, "
                            "and see outcomes()");
}

}  // namespace detail

namespace {

// Loads LibTorch's CUDA part before the tasks compute, so that a missing driver is an error before
// any has started. A thread of its own does so, since the caller's current device must stay what it
// is.
void load_cuda_for(const detail::TaskEntries& tasks, const TaskPlan& plan) {
  for (const size_t i : indices_of(tasks)) {
    const TaskDevice& first = plan.devices.all()[plan.places[i].devices[0]];
    if (tasks[i].mode != TaskMode::thread || !first.device.is_cuda())
      continue;
    // CUDA then counts the GPUs as this machine's inventory does.
    ::setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
    std::exception_ptr failure;
    std::thread([&] {
      try {
        use_task_device(first.device, first.uuid);
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure)
      std::rethrow_exception(failure);
    return;
  }
}

// Logs a line for each reason why tasks run on the CPU, with all tasks that have it.
void say_what_is_instead(const std::vector<TaskOutcome>& outcomes) {
  std::map<std::string, Strings> tasks;
  for (const TaskOutcome& outcome : outcomes) {
    if (!outcome.instead.empty())
      tasks[outcome.instead].push_back(in_quotes(printable(outcome.name)));
  }
  for (const auto& [why, names] : tasks)
    log_info("on the CPU: task ", join(names, ", "), ": ", why);
}

}  // namespace

TaskSet::TaskSet(int argc, char** argv, TaskSetOptions options)
    : options_(options), argv_(argc > 0 ? own_command_line(argc, argv) : Strings()) {
  const auto order = task_order_from_environment();
  if (order && order->kind == TaskOrder::Kind::launcher)
    launch_task_group(*order, argv_);
}

// Everything that is wrong with a task is found here, before any task runs.
void TaskSet::add_entry(detail::TaskEntry entry) {
  const auto who = cat("task '", printable(entry.name), "': ");
  if (entry.name.empty())
    throw invalid_argument("task: expected a name, got an empty one");
  if (has_run_)
    throw failed_precondition(who, "expected a set that has not run yet");
  if (contains(entries_, entry.name, &detail::TaskEntry::name)) {
    throw invalid_argument(who,
                           "expected a name of its own, got one that another task of the set has");
  }
  if (entry.mode != TaskMode::thread && argv_.empty()) {
    throw failed_precondition(
        who,
        "expected a set that knows the program's arguments, which a task in a process needs; "
        "make it as TaskSet(argc, argv)");
  }
  if (entry.ranks && *entry.ranks < 1)
    throw invalid_argument(who, "expected 1 rank or more, got ", *entry.ranks);
  outcomes_.push_back({.name = entry.name, .mode = entry.mode});
  entries_.push_back(std::move(entry));
}

Strings TaskSet::names() const {
  return mapped(entries_, &detail::TaskEntry::name);
}

void TaskSet::run() {
  if (has_run_)
    throw failed_precondition("tasks: expected to run once; make another TaskSet");
  if (options_.per_device < 1 || options_.cpu_slots < 0) {
    throw invalid_argument("tasks: expected per_device from 1 and cpu_slots from 0, got ",
                           options_.per_device,
                           " and ",
                           options_.cpu_slots);
  }
  let_signals_end_first_process();
  const auto is_process = [](const detail::TaskEntry& entry) {
    return entry.mode != TaskMode::thread;
  };
  if (any_of(entries_, is_process)) {
    if (const auto order = task_order_from_environment())
      run_as_child(*order);
  }
  const TaskPlan plan = plan_tasks(entries_, options_);
  for (size_t i = 0; i < entries_.size(); ++i)
    outcomes_[i].instead = plan.places[i].instead;
  say_what_is_instead(outcomes_);
  load_cuda_for(entries_, plan);
  has_run_ = true;
  TaskDispatch(entries_, plan, outcomes_).run(options_, argv_);
  throw_failures();
}

// Returns the task that this child is for. Throws: failed_precondition if the program has come to
// another set first, or has added other tasks than in the parent.
const detail::TaskEntry& TaskSet::entry_of(const TaskOrder& order) const {
  if (order.tasks == names())
    return entries_.at(order.number);
  throw failed_precondition(
      "expected the tasks ",
      join(order.tasks, ", "),
      ", got ",
      join(names(), ", "),
      "; a program that is started again must come to the same set first, with the same tasks");
}

// Does the one task that this process is for, answers the parent, and ends the process. The parent
// has decided everything else.
void TaskSet::run_as_child(const TaskOrder& order) {
  take_own_name();
  ::unsetenv(kTaskVariable);  // the order is not for a set that the task itself makes
  come_to_own_call();
  if (order.kind == TaskOrder::Kind::rank)
    run_as_rank(order);
  int exit_code = 1;
  try {
    set_log_name(cat("task ", printable(order.name)));
    const detail::TaskEntry& entry = entry_of(order);
    const Device device(order.device);
    use_task_device(device, order.uuid);
    const SharedStop stop(order.stop_fd);
    TaskContext context(
        {.name = order.name,
         .device = device,
         .place = order.place,
         .number = order.number,
         .stop = stop.flag(),
         .assignment =
             plan_from_json(read_task_memory(order.plan_fd), "the task's plan").ranks.at(0)});
    entry.call(context);
    context.leave();
    answer_with_result(order, entry.result_bytes());
    exit_code = 0;
  } catch (...) {
    answer_with_error(order, text_of_failure(std::current_exception()));
  }
  std::exit(exit_code);
}

// The rank's failure is told by run(); only one before it has to be told here.
void TaskSet::run_as_rank(const TaskOrder& order) {
  std::string backend;
  try {
    backend = entry_of(order).backend;
  } catch (const Error& error) {
    log_error(error.message());
    write_error_file(error.message());
    std::exit(1);
  }
  std::exit(muster::run({.backend = backend}, 0, nullptr, [&](Context& context) {
    const detail::TaskEntry& entry = entry_of(order);
    entry.call_rank(context);
    if (context.rank() == 0)
      answer_with_result(order, entry.result_bytes());
  }));
}

void TaskSet::throw_failures() const {
  Strings failed;
  Strings not_started;
  for (const TaskOutcome& outcome : outcomes_) {
    const auto name = printable(outcome.name);
    if (outcome.state == TaskOutcome::State::not_started)
      not_started.push_back(name);
    if (outcome.state == TaskOutcome::State::failed)
      failed.push_back(cat("\n  task '", name, "' on ", outcome.place, ": ", outcome.error));
  }
  if (failed.empty())
    return;
  auto lines = join(failed, "");
  if (!not_started.empty())
    lines += cat("\n  not started: ", join(not_started, ", "));
  throw Error(ErrorCode::peer_failed,
              "tasks: expected all ",
              outcomes_.size(),
              " to end well, got ",
              failed.size(),
              " that failed:",
              lines);
}

}  // namespace muster
