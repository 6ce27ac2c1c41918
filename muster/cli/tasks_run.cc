#include "muster/cli/tasks_run.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/cli/tasks_machines.h"
#include "muster/cli/tasks_show.h"
#include "muster/cli/tasks_submit.h"
#include "muster/cli/tasks_which_run.h"
#include "muster/cli/usage.h"
#include "muster/launch/agent.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/other_users.h"
#include "muster/tasks/hosts/left_over.h"
#include "muster/tasks/report/live_table.h"
#include "muster/tasks/runner.h"
#include "muster/tasks/schedule/check_needs.h"
#include "muster/tasks/slurm/element.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

NumaBinding binding_of(const TasksRun& run) {
  const std::string text = run.setting("numa-binding");
  if (text.empty()) return PoolOptions{}.numa_binding;
  const NumaBinding binding = parse_numa_binding(text);
  if (binding == NumaBinding::socket || binding == NumaBinding::core_complex)
    fail_usage(cat("--numa-binding: expected none, node or exclusive, got ", text));
  return binding;
}

// "--need-gpus 3 --need-cpus 2"; empty: the tasks are of no sweep, or it has none of these.
std::string need_flags_text(const TasksFlags& flags) {
  std::vector<std::string> given;
  for (const auto& [flag, value] :
       {std::pair("--need-gpus ", flags.need_gpus), std::pair("--need-memory ", flags.need_memory),
        std::pair("--need-cpus ", flags.need_cpus)}) {
    if (!value.empty()) given.push_back(cat(flag, printable(value)));
  }
  return join(given, " ");
}

// More may be meant, for tasks that mostly wait; it is rather a slip.
void warn_of_cpus(const Inventory& inventory, int cpus) {
  int most = 0;
  for (const Host& host : inventory.hosts) most = std::max(most, host.num_cores);
  if (most == 0 || cpus <= most) return;
  log(LogLevel::warn, cat("--cpus ", cpus, ": ", inventory.hosts.size() == 1 ? "" : "a host of ",
                          inventory.source, " has ", inventory.hosts.size() == 1 ? "" : "at most ",
                          plural(most, "core"), ", which that many tasks will share"));
}

Schedule schedule_of(const TasksFlags& flags, const TasksRun& run, const TaskMachines& machines) {
  const Inventory& inventory = machines.inventory;
  const VisibilityMasks& masks = machines.masks;
  const auto number = [&](const char* name) {
    return static_cast<int>(parse_int(run.setting(name)).value_or(0));
  };
  check_needs(run.file.tasks, {.inventory = inventory,
                               .source = run.setting("spec"),
                               .text = run.spec_text,
                               .need_flags = need_flags_text(flags),
                               .masks = masks,
                               .gpus = run.setting("gpus"),
                               .cpus = number("cpus")});
  warn_of_cpus(inventory, number("cpus"));
  Pool pool(inventory, {.gpus = run.setting("gpus"),
                        .masks = masks,
                        .cpus = number("cpus"),
                        .slots = machines.slots,
                        .numa_binding = binding_of(run)});
  ScheduleOptions options{.max_running = number("jobs")};
  for (size_t i = 0; i < run.before.results.size(); ++i) {
    if (run.before.results[i].state == TaskState::done) options.done.push_back(i);
  }
  return {run.file.tasks, std::move(pool), std::move(options)};
}

std::optional<std::chrono::milliseconds> time_of(const std::string& text, const char* flag) {
  if (text.empty()) return std::nullopt;
  return parse_duration(text, flag);
}

struct RunTimes {
  std::optional<std::chrono::milliseconds> wait = {};
  std::optional<std::chrono::milliseconds> grace = {};
  std::optional<std::chrono::milliseconds> limit = {};
};

RunTimes times_of(const TasksFlags& flags) {
  const RunTimes times{.wait = time_of(flags.wait, "--wait"),
                       .grace = time_of(flags.grace, "--shutdown-timeout"),
                       .limit = time_of(flags.time_limit, "--time-limit")};
  if (times.limit && times.limit->count() == 0)
    fail_usage(cat("--time-limit: expected a time above 0, got '", printable(flags.time_limit),
                   "'; leave it out for none"));
  return times;
}

void warn_of_others(const Pool& pool, int here) {
  if (here < 0 || pool.inventory().simulated) return;
  const auto at = static_cast<size_t>(here);
  std::vector<GpuUuid> wanted;
  for (const PoolGpu& gpu : pool.hosts()[at].gpus) wanted.push_back(gpu.uuid);
  for (const std::string& line : other_users_of(pool.inventory().hosts[at], wanted))
    log(LogLevel::warn, cat(line, ", whose memory and time tasks there share; --gpus chooses others"));
}

JobNote note_of(const TasksFlags& flags, const TasksRun& run, const std::vector<PoolGpu>& gpus,
                const std::string& run_id) {
  JobNote note{.id = run_id,
               .pid = ::getpid(),
               .program = cat("tasks ", flags.spec.empty() ? join(flags.command, " ") : flags.spec),
               .run_dir = run.run_dir,
               .num_ranks = static_cast<int>(run.file.tasks.size()),
               .since_seconds = std::time(nullptr)};
  for (const PoolGpu& gpu : gpus) note.devices.push_back(gpu.uuid.value);
  return note;
}

int exit_code_of(const RunOutcome& outcome) {
  const auto is_done = [](const TaskResult& result) { return result.state == TaskState::done; };
  if (std::all_of(outcome.results.begin(), outcome.results.end(), is_done)) return 0;
  if (outcome.timed_out) return kTimeLimitExitCode;
  return outcome.stopped_by != 0 ? 128 + outcome.stopped_by : 1;
}

// The journal as it was left, and a first record for what follows.
void begin_journal(TasksRun& run, Journal& journal, const std::string& agent, std::string& run_id) {
  const JournalState& before = run.before;
  if (before.head.run_id.empty() && fs::exists(run.run_dir + "/logs"))  // they come after the first record
    throw Error(
        ErrorCode::failed_precondition,
        cat("journal: expected the records of the run whose logs are in ", run.run_dir,
            ", got none; restore ", journal_path(run.run_dir), ", or begin anew with another --run-dir"));
  if (!before.cut.empty()) log(LogLevel::warn, cat("journal: ", before.cut));
  if (!run.is_new) end_left_over(run.run_dir, before.agents);
  journal.begin_at(before.good_bytes, before.last_sum);
  if (before.head.run_id.empty()) {
    journal.head({run_id, hash_of(read_file(task_file_path(run.run_dir))), agent}, run.file.tasks.size());
  } else {
    run_id = before.head.run_id;
    journal.resume(agent, before.seconds);
  }
  journal.sync();
}

// Results of an earlier run, as the next one finds them: what is not done starts again.
std::vector<TaskResult> results_before(const TasksRun& run) {
  std::vector<TaskResult> results = run.before.results;
  for (TaskResult& result : results) {
    if (result.state != TaskState::done) result.state = TaskState::waiting;
  }
  return results;
}

// Nothing has begun yet: that it cannot be opened, or is another run's, is wrong usage.
Journal opened_journal(const TasksRun& run) {
  try {
    return Journal(run.run_dir);
  } catch (const Error& error) {
    fail_usage(error.code() == ErrorCode::failed_precondition
                   ? error.message()
                   : cat(error.message(), "; give another folder with --run-dir"));
  }
}

int start_run(const TasksFlags& flags, const RunTimes& times, TasksRun& run, TaskMachines& machines,
              Schedule& schedule) {
  std::string run_id = make_uuid();
  begin_run_folder(run, run_id);
  Journal journal = opened_journal(run);
  if (run.is_new) {
    write_file(task_file_path(run.run_dir), to_text(run.file));
  } else if (fs::exists(journal_path(run.run_dir))) {
    run.before = read_journal(run.run_dir, run.file.tasks);  // nobody writes it any more
    end_lost_attempts(run.before);
  }
  const std::string agent = make_uuid();
  begin_journal(run, journal, agent, run_id);
  RunnerOptions options{.facts = {.run_dir = run.run_dir,
                                  .agent = agent,
                                  .launcher = fs::read_symlink("/proc/self/exe").string(),
                                  .environment = own_environment(),
                                  .lease = run.setting("no-lease").empty(),
                                  .visibility = visibility_of(run)},
                        .run_id = run_id,
                        .allow_nan = run.setting("allow-nan") == "yes",
                        .fail_fast = run.setting("fail-fast") == "yes",
                        .wait = times.wait,
                        .time_limit = times.limit,
                        .began = run.before.seconds,
                        .remote = &machines.connections,
                        .earlier = run.before.agents};
  options.facts.grace = times.grace.value_or(options.facts.grace);
  const int here = machines.here();
  warn_of_others(schedule.pool(), here);
  const JobRegistration registration(note_of(
      flags, run, here < 0 ? std::vector<PoolGpu>() : schedule.pool().hosts()[static_cast<size_t>(here)].gpus,
      run_id));
  RunOutcome outcome;
  {
    LiveTableOptions shown = live_table_options(flags.quiet);
    shown.hosts = schedule.pool().hosts().size() > 1;
    LiveTable view(run.file.tasks, shown, run.before.results);
    if (!flags.quiet) view.note(cat("the run's folder is ", run.run_dir));
    outcome = run_tasks(run.file.tasks, schedule, journal, results_before(run), options, view);
    close_hosts(machines.connections);
  }
  const int exit_code = outcome.error.empty() ? exit_code_of(outcome) : 1;
  show_results(flags, run, schedule.pool().inventory(), outcome);
  return exit_code;
}

int element_index(const std::string& text) {
  const auto index = parse_int(text);
  if (!index || *index < 0 || *index > 100'000'000)
    fail_usage(cat("--exec-element: expected an index from 0, got '", printable(text), "'"));
  return static_cast<int>(*index);
}

}  // namespace

int run_tasks_command(const TasksFlags& given) {
  if (given.element.size() == 2) exec_element(given.element[0], element_index(given.element[1]));
  if (given.serve) return serve_tasks_of_another();
  const RunTimes times = times_of(given);  // before anything is made or started
  TasksFlags flags = given;                // a run that goes on does so in the folder in which it began
  if (!flags.csv.empty()) flags.csv = fs::absolute(flags.csv).string();
  if (!flags.html.empty()) flags.html = fs::absolute(flags.html).string();
  TasksRun run = which_run(flags);
  if (!flags.submit.empty()) return submit_tasks(flags, run);
  const bool only_shows = flags.dry_run || !flags.explain.empty();
  if (only_shows && !run.is_new && !is_in_use(run.run_dir)) end_lost_attempts(run.before);
  TaskMachines machines = machines_of(run, only_shows);
  Schedule schedule = schedule_of(flags, run, machines);
  if (!flags.explain.empty()) return explain_task(flags, run, machines, schedule);
  if (flags.dry_run) return show_first_starts(flags, run, machines, schedule);
  check_result_files(flags);
  return start_run(flags, times, run, machines, schedule);
}

}  // namespace muster
