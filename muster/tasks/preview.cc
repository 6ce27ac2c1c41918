// A preview has the schedule stand where the run stands, or would begin, counts what other jobs
// hold on the machines, and asks it what it would start. The schedule is a value of this process:
// nothing is started and nobody else sees it.
#include "muster/tasks/preview.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/json_member.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"
#include "muster/base/wall_time.h"
#include "muster/draw/text_table.h"
#include "muster/tasks/hosts/foreign_leases.h"
#include "muster/tasks/hosts/task_process.h"
#include "muster/tasks/report/card.h"
#include "muster/tasks/schedule/explain.h"

namespace muster {

namespace {

// The devices that a running task has by the journal, as the pool counts them; nothing when they
// are another machine's.
std::optional<Allocation> allocation_of(const DevicePool& pool,
                                        const TaskAttempt& attempt,
                                        const TakenShare& taken) {
  const auto host = index_with(pool.hosts(), attempt.host, &PoolHost::name);
  if (!host)
    return std::nullopt;
  Allocation where{.host = *host,
                   .units = static_cast<int>(std::lround(attempt.gpu_fraction * kWholeGpu)),
                   .memory_bytes = taken.memory_bytes,
                   .cpus = taken.cpus,
                   .own_cpus = {},
                   .bound = attempt.cpus};
  for (const auto& device : attempt.devices) {
    const auto gpu = pool.hosts()[*host].find_gpu(device);
    if (!gpu)
      return std::nullopt;
    where.gpus.push_back(*gpu);
  }
  return where;
}

// Whether the run goes on in another process at this moment.
bool goes_on(const TasksRun& run) {
  return !run.is_new && is_in_use(run.run_dir);
}

bool has_ended_badly(const TaskResult& result) {
  return is_one_of(result.state, TaskState::failed, TaskState::skipped);
}

// "GPU 2 of a".
std::string place_text(const TaskAttempt& attempt) {
  return cat(describe_devices(attempt), " of ", attempt.host);
}

// Has the schedule stand where the run stands that goes on in the folder. Returns the present in
// the run's seconds.
double restore_run(const TasksRun& run, TaskSchedule& schedule) {
  const JournalState& state = run.before;
  const double now = present_of(state, seconds_since_1970());
  std::vector<TaskStanding> standings;
  for (const size_t i : indices_of(state.results)) {
    const TaskResult& result = state.results[i];
    TaskStanding standing{.task = i,
                          .state = result.state,
                          .failures = state.failures[i].count,
                          .failed_at = state.failures[i].last,
                          .stops = state.stops[i].count,
                          .stopped_at = state.stops[i].last};
    if (result.state == TaskState::running) {
      standing.where = allocation_of(schedule.pool(), result.attempts.back(), state.taken[i]);
      standing.began = result.attempts.back().began;
    }
    standings.push_back(std::move(standing));
  }
  schedule.restore(standings, now);
  return now;
}

// Tells what became of the task, where that is more than its state; else empty.
std::string told_before(const TasksRun& run, size_t task) {
  if (run.is_new)
    return {};
  const TaskResult& result = run.before.results[task];
  const auto name = printable(run.file.tasks[task].name);
  if (has_ended_badly(result))
    return cat(name, " is ", to_string(result.state), ": ", printable(result.reason), "\n");
  if (!result.attempts.empty() && result.attempts.back().lost)
    return cat(name, " ran when the run was killed\n");
  return {};
}

// Explains the task of a run that goes on in another process.
std::string explain_now(const TasksRun& run, size_t task, TaskSchedule& schedule) {
  const TaskResult& result = run.before.results[task];
  const double now = restore_run(run, schedule);
  if (has_ended_badly(result))
    return told_before(run, task);
  if (result.state != TaskState::running)
    return explain(schedule, task, now);
  const TaskAttempt& attempt = result.attempts.back();
  return cat(printable(run.file.tasks[task].name),
             " runs since ",
             format_seconds(now - attempt.began),
             " on ",
             place_text(attempt),
             "\n");
}

// Explains the task of a run that has ended or has not begun, as if it went on or began now.
std::string explain_beginning(const TasksRun& run, size_t task, TaskSchedule& schedule) {
  std::string text = run.is_new ? "no run yet; if one began now:\n" : "no run goes on there\n";
  const auto name = printable(run.file.tasks[task].name);
  if (schedule.state(task) == TaskState::done)
    return cat(text, name, " is done\n");
  text += told_before(run, task);
  if (!run.is_new)
    text += "if it went on now, with --resume alone:\n";
  const TaskStarts starts = schedule.start(0);
  const TaskStart* const start = element_with(starts, task, &TaskStart::task);
  if (start == nullptr)
    return text + explain(schedule, task, 0);
  const TaskAttempt attempt = attempt_of(schedule.pool(), start->where, 0);
  return cat(text, name, " would start first, on ", place_text(attempt), "\n");
}

// Has the schedule count what other jobs hold on all machines, and keeps a line for each GPU.
class HeldGpus {
 public:
  HeldGpus(const TaskMachines& machines, TaskSchedule& schedule)
      : machines_(machines), schedule_(schedule) {}

  Strings count(const TasksRun& run) {
    count_here(run);
    for (const int host : int_indices_of(machines_.connections)) {
      if (const auto& connection = machines_.connections[host])
        count_there(host, *connection);
    }
    return std::move(lines_);
  }

 private:
  void count_here(const TasksRun& run) {
    const int here = machines_.here();
    ForeignLeases leases(schedule_.pool(),
                         here,
                         run.before.head.run_id,
                         run.settings.lease,
                         [this, here](const auto&... held) { add(here, held...); });
    leases.look();
  }

  // The server there has told with its inventory what others hold.
  void count_there(int host, const RemoteHost& connection) {
    for (const RemoteHeld& held : connection.held_before()) {
      if (const auto gpu = schedule_.pool().hosts()[host].find_gpu(held.gpu))
        add(host, *gpu, std::min(held.units, kWholeGpu), printable(held.by));
    }
  }

  void add(int host, int gpu, int units, const std::string& by) {
    if (units == 0)
      return;
    schedule_.set_leased(host, gpu, units, by);
    const PoolHost& mine = schedule_.pool().hosts()[host];
    const auto of_host = machines_.connections.empty() ? "" : cat(" of ", mine.name);
    lines_.push_back(cat("GPU ", mine.gpus[gpu].index.value, of_host, " is ", by));
  }

  const TaskMachines& machines_;
  TaskSchedule& schedule_;
  Strings lines_;
};

std::string text_of(const nlohmann::ordered_json& json) {
  return json_text(json, 2) + "\n";
}

// One object a start, in the order of the starts.
std::string first_starts_json(const TasksRun& run,
                              const TaskSchedule& schedule,
                              const TaskStarts& starts,
                              const Strings& held) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TaskStart& start : starts) {
    const Task& task = run.file.tasks[start.task];
    const TaskAttempt attempt = attempt_of(schedule.pool(), start.where, 0);
    list.push_back({{"task", task.name},
                    {"host", attempt.host},
                    {"devices", attempt.devices},
                    {"gpus", attempt.gpu_indices},
                    {"gpu_fraction", attempt.devices.empty() ? 0 : attempt.gpu_fraction},
                    {"cpus", start.where.cpus},
                    {"needs", describe(task.needs[start.alternative])},
                    {"alternative", start.alternative}});
  }
  return text_of({{"schema", "muster.tasks.dry_run/1"},
                  {"starts", std::move(list)},
                  {"waiting", schedule.count(TaskState::waiting)},
                  {"held", held}});
}

// How many tasks are in each state before the starts that are previewed.
struct StandingBefore {
  size_t done = 0;
  size_t running = 0;
  size_t waiting = 0;
};

const char* begin_text(size_t starts) {
  if (starts == 0)
    return "none can start now; ";
  return starts == 1 ? "this one starts first; " : "these start first; ";
}

// A table of the starts, and how many tasks are left.
std::string first_starts_text(const TasksRun& run,
                              const TaskSchedule& schedule,
                              const StandingBefore& before,
                              const TaskStarts& starts,
                              const Strings& held) {
  const size_t all = run.file.tasks.size();
  if (before.running + before.waiting == 0)
    return cat("every task has ended, ",
               before.done,
               " of ",
               all,
               word_for(before.done, " is", " are"),
               " done: nothing starts\n");
  TableRows rows;
  for (const TaskStart& start : starts) {
    const Task& task = run.file.tasks[start.task];
    rows.push_back({task.name,
                    schedule.pool().hosts()[start.where.host].name,
                    describe_devices(attempt_of(schedule.pool(), start.where, 0)),
                    describe(task.needs[start.alternative]),
                    start.alternative == 0 ? "" : cat("alternative ", start.alternative + 1)});
  }
  const bool none = rows.empty();
  std::string text;
  if (!none)
    text = format_table({{"task"}, {"host"}, {"devices"}, {"needs"}, {""}}, rows);
  text += cat("of ", plural(all, "task"), " ");
  if (before.done > 0)
    text += cat(before.done, word_for(before.done, " is", " are"), " done, ");
  if (before.running > 0)
    text += cat(before.running, word_for(before.running, " runs, ", " run, "));
  text += begin_text(starts.size());
  const size_t waiting = schedule.count(TaskState::waiting);
  text += cat(waiting, word_for(waiting, " waits", " wait"));
  text += none ? "; --explain NAME says why\n" : "\n";
  if (!held.empty())
    text += cat("other jobs have GPUs: ", join(held, ", "), "\n");
  return text;
}

}  // namespace

// GPUs that others hold are counted in any case: the task may wait for them.
std::string why_task_waits(const std::string& name,
                           const TasksRun& run,
                           const TaskMachines& machines,
                           TaskSchedule& schedule,
                           bool json) {
  const auto task = schedule.find(name);
  if (!task)
    fail_usage("--explain: expected the name of a task, got '", printable(name), "'");
  HeldGpus(machines, schedule).count(run);
  const TaskState state = run.is_new ? TaskState::waiting : run.before.results[*task].state;
  std::string text =
      goes_on(run) ? explain_now(run, *task, schedule) : explain_beginning(run, *task, schedule);
  if (!json)
    return text;
  return text_of({{"schema", "muster.tasks.explain/1"},
                  {"task", name},
                  {"state", to_string(state)},
                  {"text", text}});
}

std::string first_starts(const TasksRun& run,
                         const TaskMachines& machines,
                         TaskSchedule& schedule,
                         bool json) {
  const Strings held = HeldGpus(machines, schedule).count(run);
  const double now = goes_on(run) ? restore_run(run, schedule) : 0;
  const StandingBefore before{.done = schedule.count(TaskState::done),
                              .running = schedule.count(TaskState::running),
                              .waiting = schedule.count(TaskState::waiting)};
  const TaskStarts starts = schedule.start(now);
  return json ? first_starts_json(run, schedule, starts, held)
              : first_starts_text(run, schedule, before, starts, held);
}

}  // namespace muster
