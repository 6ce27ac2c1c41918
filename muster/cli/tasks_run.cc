#include "muster/cli/tasks_run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/patient_write.h"
#include "muster/base/units.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/launch/agent.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/job_setup.h"
#include "muster/placement/text_table.h"
#include "muster/tasks/check_needs.h"
#include "muster/tasks/foreign_leases.h"
#include "muster/tasks/live_table.h"
#include "muster/tasks/results.h"
#include "muster/tasks/runner.h"
#include "muster/tasks/slurm_element.h"
#include "muster/tasks/slurm_submit.h"
#include "muster/tasks/spec.h"
#include "muster/tasks/sweep.h"
#include "muster/tasks/task_file.h"
#include "muster/tasks/task_report.h"
#include "muster/tasks/timeline.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_usage(const std::string& text) {
  throw Error(ErrorCode::invalid_argument, text);
}

// What a sweep's tasks have in common.
Task common_of(const TasksFlags& flags) {
  Task common{.retries = flags.retries};
  if (flags.need_gpus.empty() && flags.need_memory.empty() && flags.need_cpus.empty()) return common;
  TaskNeed need;
  try {
    size_t used = 0;
    if (!flags.need_gpus.empty()) need.gpus = std::stod(flags.need_gpus, &used);
    if (used != flags.need_gpus.size()) throw std::invalid_argument("");
  } catch (const std::exception&) {
    fail_usage(cat("--need-gpus: expected a number as 2 or 0.5, got '", printable(flags.need_gpus), "'"));
  }
  const bool whole = need.gpus == static_cast<double>(static_cast<int>(need.gpus));
  if (need.gpus < 0 || need.gpus > 1'000 || (need.gpus > 1 && !whole))
    fail_usage(cat("--need-gpus: expected a whole number, or a share below 1, got ", flags.need_gpus));
  if (!flags.need_memory.empty()) need.memory_bytes = parse_bytes(flags.need_memory);
  if (need.memory_bytes > 0 && need.gpus == 0) need.gpus = 1;
  if (!flags.need_cpus.empty()) {
    const auto cpus = parse_int(flags.need_cpus);
    if (!cpus || *cpus < 1 || *cpus > 65'536)
      fail_usage(cat("--need-cpus: expected a number from 1, got '", printable(flags.need_cpus), "'"));
    need.cpus = static_cast<int>(*cpus);
  }
  common.needs = {need};
  return common;
}

bool has_tasks(const TasksFlags& flags) {
  return !flags.spec.empty() || !flags.sweeps.empty() || !flags.command.empty();
}

std::vector<Task> typed_tasks(const TasksFlags& flags) {
  if (!flags.spec.empty() && (!flags.sweeps.empty() || !flags.command.empty()))
    fail_usage("expected a spec file or --sweep … -- CMD, got both; leave one of them out");
  if (!flags.spec.empty()) return read_task_file(flags.spec);
  if (flags.sweeps.empty() || flags.command.empty())
    fail_usage(
        "expected a spec file, or --sweep NAME=VALUES … -- CMD, got neither; as in: muster tasks sweep.toml");
  return tasks_of_sweep({.sweeps = flags.sweeps, .command = flags.command, .common = common_of(flags)});
}

// What the command line said of where tasks run: kept in the run's folder, for when it goes on.
std::map<std::string, std::string> settings_of(const TasksFlags& flags) {
  std::map<std::string, std::string> settings;
  const auto keep = [&](const char* name, const std::string& value) {
    if (!value.empty()) settings[name] = value;
  };
  keep("gpus", flags.gpus);
  keep("inventory", flags.inventory.empty() ? "" : fs::absolute(flags.inventory).string());
  keep("cpus", flags.cpus > 0 ? cat(flags.cpus) : "");
  keep("jobs", flags.jobs > 0 ? cat(flags.jobs) : "");
  keep("fail-fast", flags.fail_fast ? "yes" : flags.keep_going ? "no" : "");
  keep("numa-binding", flags.numa_binding);
  keep("no-lease", flags.no_lease ? "yes" : "");
  return settings;
}

// A run, be it new or one that goes on.
struct TasksRun {
  std::string run_dir = {};  // absolute; empty: a new one is to be made
  bool is_new = true;
  TaskFile file = {};
  JournalState before = {};

  std::string setting(const char* name) const {
    const auto found = file.settings.find(name);
    return found == file.settings.end() ? std::string() : found->second;
  }
};

// The run in the folder. Its tasks are those that it began with: others are refused.
TasksRun run_in_folder(const TasksFlags& flags) {
  TasksRun run{.run_dir = fs::weakly_canonical(fs::absolute(flags.resume)).string(), .is_new = false};
  const std::string path = task_file_path(run.run_dir);
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error&) {
    fail_usage(cat("--resume: expected the folder of a run of tasks, got '", printable(flags.resume),
                   "', which has no tasks.json; see runs/"));
  }
  run.file = task_file_of(text, path);
  if (has_tasks(flags) && typed_tasks(flags) != run.file.tasks)
    fail_usage(cat(
        "--resume: expected the tasks that ", printable(flags.resume),
        " began with, got others; leave the spec out to go on with those, or begin anew without --resume"));
  if (fs::exists(journal_path(run.run_dir))) run.before = read_journal(run.run_dir, run.file.tasks);
  if (!run.before.head.tasks_hash.empty() && run.before.head.tasks_hash != hash_of(text))
    throw Error(ErrorCode::failed_precondition,
                cat("--resume: expected ", path, " as the run had written it, got another; restore it"));
  run.before.results.resize(run.file.tasks.size());
  run.before.taken.resize(run.file.tasks.size());
  for (const auto& [name, value] : settings_of(flags)) run.file.settings[name] = value;
  if (const std::string folder = run.setting("folder"); !folder.empty() && ::chdir(folder.c_str()) != 0)
    fail_errno(cat("--resume: cannot change to the run's folder '", folder, "'"), errno);
  return run;
}

TasksRun new_run(const TasksFlags& flags) {
  TasksRun run{.file = {.settings = settings_of(flags), .tasks = typed_tasks(flags)}};
  run.file.settings["folder"] = fs::current_path().string();
  if (!flags.run_dir.empty()) run.run_dir = fs::weakly_canonical(fs::absolute(flags.run_dir)).string();
  if (!run.run_dir.empty() && fs::exists(journal_path(run.run_dir)))
    throw Error(ErrorCode::failed_precondition,
                cat("--run-dir: expected a folder without a run, got '", printable(flags.run_dir),
                    "', which has a journal; go on with --resume, or give another"));
  return run;
}

bool any_need(const std::vector<Task>& tasks, bool (*is)(const TaskNeed&)) {
  return std::any_of(tasks.begin(), tasks.end(),
                     [&](const Task& task) { return std::any_of(task.needs.begin(), task.needs.end(), is); });
}

// Asks for no more than the tasks need: every answer takes time.
Inventory machine_of(const TasksRun& run) {
  if (const std::string file = run.setting("inventory"); !file.empty()) return read_inventory(file);
  const auto& tasks = run.file.tasks;
  ProbeOptions probe{
      .gpus = any_need(tasks, [](const TaskNeed& need) { return need.gpus > 0; }),
      .detail = GpuDetail::full,
      .links = any_need(tasks, [](const TaskNeed& need) { return need.gpus > 1; }),
      .cpu_topology = any_need(tasks, [](const TaskNeed& need) { return need.cpus > 0 || need.gpus > 0; })};
  try {
    return probe_this_machine(probe);
  } catch (const Error& error) {
    const bool asked = !run.setting("numa-binding").empty();
    if (!probe.cpu_topology || asked || error.code() != ErrorCode::unavailable) throw;
    log(LogLevel::debug, cat(error.message(), "; tasks are not bound to CPUs"));
    probe.cpu_topology = false;
    return probe_this_machine(probe);
  }
}

NumaBinding binding_of(const TasksRun& run) {
  const std::string text = run.setting("numa-binding");
  if (text.empty()) return PoolOptions{}.numa_binding;
  const NumaBinding binding = parse_numa_binding(text);
  if (binding == NumaBinding::socket || binding == NumaBinding::core_complex)
    fail_usage(cat("--numa-binding: expected none, node or exclusive, got ", text));
  return binding;
}

Schedule schedule_of(const TasksRun& run) {
  const Inventory inventory = machine_of(run);
  const VisibilityMasks masks = inventory.simulated ? VisibilityMasks{} : inherited_masks();
  check_needs(run.file.tasks, {.inventory = inventory, .masks = masks});
  const auto number = [&](const char* name) {
    return static_cast<int>(parse_int(run.setting(name)).value_or(0));
  };
  Pool pool(
      inventory,
      {.gpus = run.setting("gpus"), .masks = masks, .cpus = number("cpus"), .numa_binding = binding_of(run)});
  ScheduleOptions options{.max_running = number("jobs")};
  for (size_t i = 0; i < run.before.results.size(); ++i) {
    if (run.before.results[i].state == TaskState::done) options.done.push_back(i);
  }
  return {run.file.tasks, std::move(pool), std::move(options)};
}

// What a journal says that a running task has, as the pool counts it; nothing when that is another machine's.
std::optional<Allocation> allocation_of(const Pool& pool, const TaskAttempt& attempt,
                                        const TakenShare& taken) {
  Allocation where{.host = -1,
                   .memory_bytes = taken.memory_bytes,
                   .cpus = taken.cpus,
                   .own_cpus = {},
                   .bound = attempt.cpus};
  where.units = static_cast<int>(std::lround(attempt.gpu_fraction * kWholeGpu));
  for (size_t h = 0; h < pool.hosts().size(); ++h) {
    if (pool.hosts()[h].name == attempt.host) where.host = static_cast<int>(h);
  }
  if (where.host < 0) return std::nullopt;
  const auto& gpus = pool.hosts()[static_cast<size_t>(where.host)].gpus;
  for (const std::string& device : attempt.devices) {
    const auto found =
        std::find_if(gpus.begin(), gpus.end(), [&](const PoolGpu& gpu) { return gpu.uuid.value == device; });
    if (found == gpus.end()) return std::nullopt;
    where.gpus.push_back(static_cast<int>(found - gpus.begin()));
  }
  return where;
}

int explain_task(const TasksFlags& flags, const TasksRun& run, Schedule& schedule) {
  const auto task = schedule.find(flags.explain);
  if (!task) fail_usage(cat("--explain: expected the name of a task, got '", printable(flags.explain), "'"));
  const bool goes_on = !run.is_new && is_in_use(run.run_dir);
  std::string text;
  double now = run.before.seconds;
  if (goes_on) {
    for (size_t i = 0; i < run.before.results.size(); ++i) {
      const TaskResult& result = run.before.results[i];
      if (result.state != TaskState::running) continue;
      if (const auto where = allocation_of(schedule.pool(), result.attempts.back(), run.before.taken[i]))
        schedule.restore_running(i, *where, result.attempts.back().began);
    }
  } else if (!run.is_new) {
    text = "no run goes on there; with --resume alone:\n";
  }
  ForeignLeases foreign(schedule, run.before.head.run_id, run.setting("no-lease").empty());
  foreign.look();
  const TaskState before = run.is_new ? TaskState::waiting : run.before.results[*task].state;
  if (before == TaskState::failed || before == TaskState::skipped)
    text += cat(printable(flags.explain), " is ", to_string(before), ": ", run.before.results[*task].reason,
                "\n");
  if (goes_on ? before != TaskState::failed && before != TaskState::skipped : true) {
    if (!goes_on) schedule.start(now);
    text += schedule.explain(*task, now);
  }
  write_all(STDOUT_FILENO, text);
  return 0;
}

int show_first_starts(const TasksRun& run, Schedule& schedule) {
  ForeignLeases foreign(schedule, "", run.setting("no-lease").empty());
  foreign.look();
  std::vector<std::vector<std::string>> rows;
  for (const TaskStart& start : schedule.start(0)) {
    const Task& task = run.file.tasks[start.task];
    rows.push_back({task.name, schedule.pool().hosts()[static_cast<size_t>(start.where.host)].name,
                    describe_devices(attempt_of(schedule.pool(), start.where, 0)),
                    describe(task.needs[start.alternative]),
                    start.alternative == 0 ? "" : cat("alternative ", start.alternative + 1)});
  }
  const size_t first = rows.size();
  std::string text = format_table({{"task"}, {"host"}, {"devices"}, {"needs"}, {""}}, rows);
  text += cat("of ", run.file.tasks.size(), " tasks these start first; ", schedule.count(TaskState::waiting),
              " wait", first == 0 ? ", for what --explain tells" : "", "\n");
  if (foreign.any()) text += cat("other jobs have GPUs: ", foreign.describe(), "\n");
  write_all(STDOUT_FILENO, text);
  return 0;
}

std::optional<std::chrono::milliseconds> time_of(const std::string& text, const char* flag) {
  if (text.empty()) return std::nullopt;
  return parse_duration(text, flag);
}

void begin_folder(TasksRun& run, const std::string& run_id) {
  if (run.run_dir.empty()) run.run_dir = fs::absolute(run_folder_of({.run_id = run_id})).string();
  std::error_code error;
  fs::create_directories(run.run_dir, error);
  if (error)
    throw Error(ErrorCode::io, cat("cannot create the run's folder '", run.run_dir, "': ", error.message(),
                                   "; give another with --run-dir"));
}

JobNote note_of(const TasksFlags& flags, const TasksRun& run, const Schedule& schedule,
                const std::string& run_id) {
  JobNote note{.id = run_id,
               .pid = ::getpid(),
               .program = cat("tasks ", flags.spec.empty() ? join(flags.command, " ") : flags.spec),
               .run_dir = run.run_dir,
               .num_ranks = static_cast<int>(run.file.tasks.size()),
               .since_seconds = std::time(nullptr)};
  for (const PoolHost& host : schedule.pool().hosts()) {
    for (const PoolGpu& gpu : host.gpus) note.devices.push_back(gpu.uuid.value);
  }
  return note;
}

int exit_code_of(const RunOutcome& outcome) {
  const auto is_done = [](const TaskResult& result) { return result.state == TaskState::done; };
  if (std::all_of(outcome.results.begin(), outcome.results.end(), is_done)) return 0;
  if (outcome.timed_out) return kTimeLimitExitCode;
  return outcome.stopped_by != 0 ? 128 + outcome.stopped_by : 1;
}

void show_results(const TasksFlags& flags, const TasksRun& run, const Inventory& machine,
                  RunOutcome& outcome) {
  for (TaskResult& result : outcome.results) {
    if (result.state != TaskState::waiting && result.state != TaskState::running) continue;
    result.state = TaskState::skipped;
    if (result.reason.empty()) result.reason = "the run was ended before it could start";
  }
  const auto& tasks = run.file.tasks;
  if (!flags.csv.empty()) write_file(flags.csv, results_csv(tasks, outcome.results));
  if (!flags.html.empty()) {
    const std::string title = fs::path(run.run_dir).filename().string();
    write_file(flags.html, timeline_html(tasks, outcome.results, machine, title));
  }
  const std::string text =
      flags.json ? results_json(tasks, outcome.results) : results_table(tasks, outcome.results);
  write_all(STDOUT_FILENO, text);
}

// The journal as it was left, and a first record for what follows.
void begin_journal(TasksRun& run, Journal& journal, const std::string& agent, std::string& run_id) {
  const JournalState& before = run.before;
  if (!before.cut.empty()) log(LogLevel::warn, cat("journal: ", before.cut));
  if (!run.is_new) end_left_over(run.run_dir, before.agents);
  journal.begin_at(before.good_bytes);
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
  results.resize(run.file.tasks.size());
  for (TaskResult& result : results) {
    if (result.state != TaskState::done) result.state = TaskState::waiting;
  }
  return results;
}

int start_run(const TasksFlags& flags, TasksRun& run, Schedule& schedule) {
  std::string run_id = make_uuid();
  begin_folder(run, run_id);
  Journal journal(run.run_dir);
  if (run.is_new) {
    write_file(task_file_path(run.run_dir), to_text(run.file));
  } else if (fs::exists(journal_path(run.run_dir))) {
    run.before = read_journal(run.run_dir, run.file.tasks);  // nobody writes it any more
  }
  const std::string agent = make_uuid();
  begin_journal(run, journal, agent, run_id);
  RunnerOptions options{.facts = {.run_dir = run.run_dir,
                                  .agent = agent,
                                  .launcher = fs::read_symlink("/proc/self/exe").string(),
                                  .environment = own_environment(),
                                  .lease = run.setting("no-lease").empty()},
                        .run_id = run_id,
                        .fail_fast = run.setting("fail-fast") == "yes",
                        .wait = time_of(flags.wait, "--wait"),
                        .time_limit = time_of(flags.time_limit, "--time-limit"),
                        .began = run.before.seconds};
  if (const auto grace = time_of(flags.grace, "--shutdown-timeout")) options.facts.grace = *grace;
  const JobRegistration registration(note_of(flags, run, schedule, run_id));
  RunOutcome outcome;
  {
    LiveTable view(run.file.tasks, live_table_options(flags.quiet));
    if (!flags.quiet) view.note(cat("the run's folder is ", run.run_dir));
    outcome = run_tasks(run.file.tasks, schedule, journal, results_before(run), options, view);
  }
  const int exit_code = outcome.error.empty() ? exit_code_of(outcome) : 1;
  show_results(flags, run, schedule.pool().inventory(), outcome);
  return exit_code;
}

// The batch system keeps the books: nothing of this run is left when the jobs are its.
int submit(const TasksFlags& flags, TasksRun& run) {
  if (flags.submit != "slurm")
    fail_usage(cat("--submit: expected slurm, got '", printable(flags.submit), "'"));
  if (!run.is_new)
    fail_usage("--submit and --resume: expected one of them, got both; Slurm keeps its own books");
  begin_folder(run, make_uuid());
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  SlurmOptions options{
      .run_dir = run.run_dir, .muster = {self}, .exec_element = {self, "tasks", "--exec-element"}};
  options.sbatch.insert(options.sbatch.end(), flags.sbatch.begin(), flags.sbatch.end());
  const SlurmPlan plan = plan_slurm(run.file.tasks, options);
  for (const std::string& note : plan.notes) log(LogLevel::info, note);
  const std::vector<std::string> jobs = submit_slurm(plan, run.file.tasks, options);
  write_all(STDOUT_FILENO, cat("submitted ", run.file.tasks.size(), " tasks as ", jobs.size(),
                               jobs.size() == 1 ? " job: " : " jobs: ", join(jobs, ", "), "; see ",
                               run.run_dir, "/slurm/jobs.json and squeue\n"));
  return 0;
}

int element_index(const std::string& text) {
  const auto index = parse_int(text);
  if (!index || *index < 0 || *index > 100'000'000)
    fail_usage(cat("--exec-element: expected an index from 0, got '", printable(text), "'"));
  return static_cast<int>(*index);
}

}  // namespace

int run_tasks_command(const TasksFlags& flags) {
  if (flags.element.size() == 2) exec_element(flags.element[0], element_index(flags.element[1]));
  if (!flags.resume.empty() && !flags.run_dir.empty())
    fail_usage("--resume and --run-dir: expected one of them, got both; --resume names the run's folder");
  TasksRun run = flags.resume.empty() ? new_run(flags) : run_in_folder(flags);
  if (!flags.submit.empty()) return submit(flags, run);
  Schedule schedule = schedule_of(run);
  if (!flags.explain.empty()) return explain_task(flags, run, schedule);
  if (flags.dry_run) return show_first_starts(run, schedule);
  return start_run(flags, run, schedule);
}

}  // namespace muster
