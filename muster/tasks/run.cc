// A run begins in this order: which run is meant, which machines there are, and a schedule of both,
// where each may still refuse. Only then is the folder made, the journal opened and the first task
// started; what goes wrong from there on is told with the results. Tasks of a run that goes on keep
// the results that the journal has.
#include "muster/tasks/run.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/own_program.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/launch.h"
#include "muster/launch/other_users.h"
#include "muster/launch/run_folder.h"
#include "muster/launch/score_cache.h"
#include "muster/placement/selection/usable_gpus.h"
#include "muster/supervise/kept_requests.h"
#include "muster/tasks/hosts/left_over.h"
#include "muster/tasks/preview.h"
#include "muster/tasks/report/live_table.h"
#include "muster/tasks/report/results.h"
#include "muster/tasks/report/results_table.h"
#include "muster/tasks/runner.h"
#include "muster/tasks/schedule/check_needs.h"
#include "muster/tasks/schedule/reachable_gpus.h"
#include "muster/tasks/submission.h"
#include "muster/tasks/which_run.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

// Warns of more CPUs than any host has. They may be meant, for tasks that mostly wait, but are
// rather a slip.
void warn_of_cpus(const Inventory& inventory, int cpus) {
  const int most = max_of<int>(inventory.hosts, &Host::num_cores);
  if (most == 0 || cpus <= most)
    return;
  log_warning("--cpus ",
              cpus,
              ": ",
              a_host_has(inventory, plural(most, "CPU")),
              ", which that many tasks will share");
}

// What makes tasks run elsewhere than asked is said of a quiet run too.
void warn_of_simulation(const TaskMachines& machines) {
  if (machines.inventory.simulated)
    log_warning("the machine of --inventory is simulated: tasks run on this one's CPU");
}

// Warns where GPUs are missing that should be there: tasks that say nothing of their needs would
// run on CPUs without a word.
void warn_of_missing_gpus(const TaskMachines& machines) {
  if (machines.inventory.simulated)
    return;
  for (const Host& host : machines.inventory.hosts) {
    const UsableGpus usable = usable_gpus(host, machines.masks);
    const bool missing = usable.mask_is_wrong || (host.gpus.empty() && host.gpus_expected);
    if (missing)
      log_warning(printable(describe(host, usable)));
  }
}

// Finds the machines of the run and what each has. `held`: what other jobs hold of them is asked
// too.
TaskMachines machines_of(const TasksOptions& options, const TasksRun& run, bool held) {
  const TasksSettings& settings = run.settings;
  if (!settings.inventory.empty())
    return machines_in_file(settings.inventory);
  RemoteHello question = question_for(run.file.tasks);
  question.folder = current_folder();
  question.held = held && settings.lease;
  question.run_id = run.before.head.run_id;
  return ask_machines(options.find_machines ? options.find_machines(settings) : TaskMachineList(),
                      question);
}

// How fast the GPUs are, where the run or a task chooses by it.
Scores scores_for(const TasksRun& run, const Inventory& inventory) {
  const auto chooses_by_score = [](const Selection& selection) {
    return selection.has({SelectionItem::Kind::fastest});
  };
  auto texts = mapped_to<StringSet>(run.file.tasks, &Task::on);
  texts.erase("");
  const bool by_score =
      (run.settings.gpus && chooses_by_score(*run.settings.gpus)) ||
      any_of(texts, [&](const auto& on) { return chooses_by_score(Selection(on)); });
  return by_score ? remembered_scores(inventory) : Scores();
}

// The schedule of the run's tasks on the machines. Throws: invalid_argument for needs that can
// never be met.
TaskSchedule schedule_of(const TasksOptions& options,
                         const TasksRun& run,
                         const TaskMachines& machines) {
  const Inventory& inventory = machines.inventory;
  const TasksSettings& settings = run.settings;
  const Scores scores = scores_for(run, inventory);
  check_needs(run.file.tasks,
              {.inventory = inventory,
               .source = run.spec(),
               .text = run.spec_text,
               .need_flags = options.sweep_needs,
               .masks = machines.masks,
               .scores = scores,
               .gpus = settings.gpus,
               .cpus = settings.cpus});
  warn_of_cpus(inventory, settings.cpus);
  warn_of_missing_gpus(machines);
  PoolOptions pool{.gpus = settings.gpus,
                   .masks = machines.masks,
                   .scores = scores,
                   .cpus = settings.cpus,
                   .slots = machines.slots};
  pool.numa_binding = settings.numa_binding.value_or(pool.numa_binding);
  ScheduleOptions limits{.max_running = settings.max_running};
  limits.done = filtered_indices(run.before.results.size(), [&](size_t i) {
    return run.before.results[i].state == TaskState::done;
  });
  return {run.file.tasks, DevicePool(inventory, pool), std::move(limits)};
}

// Warns of other users' programs on this machine's GPUs.
void warn_of_others(const DevicePool& pool, int here) {
  if (here < 0 || pool.inventory().simulated)
    return;
  const auto wanted = mapped(pool.hosts()[here].gpus, &PoolGpu::uuid);
  for (const auto& line : other_users_of(pool.inventory().hosts[here], wanted))
    log_warning(line, ", whose memory and time tasks there share; --gpus chooses others");
}

// The note by which `muster ps` shows the run.
JobNote note_of(const TasksOptions& options,
                const TasksRun& run,
                const PoolGpus& gpus,
                const std::string& run_id) {
  JobNote note{
      .id = run_id,
      .pid = ::getpid(),
      .program = cat("tasks ", options.sweep ? join(options.sweep->command, " ") : options.spec),
      .run_dir = run.run_dir,
      .num_ranks = static_cast<int>(run.file.tasks.size()),
      .since_seconds = std::time(nullptr)};
  note.devices = mapped(gpus, [](const PoolGpu& gpu) { return gpu.uuid.value; });
  return note;
}

// An error of the run's own outweighs what became of the tasks.
int exit_code_of(const RunOutcome& outcome) {
  const auto is_done = [](const TaskResult& result) {
    return result.state == TaskState::done;
  };
  if (!outcome.error.empty())
    return 1;
  if (all_of(outcome.results, is_done))
    return 0;
  if (outcome.timed_out)
    return kTimeLimitExitCode;
  return outcome.stopped_by != 0 ? 128 + outcome.stopped_by : 1;
}

// Logs come after the first record: a folder that has logs has lost its journal.
void check_journal_is_there(const TasksRun& run) {
  if (!run.before.head.run_id.empty() || !fs::exists(run.run_dir + "/logs"))
    return;
  throw failed_precondition("journal: expected the records of the run whose logs are in ",
                            run.run_dir,
                            ", got none; restore ",
                            journal_path(run.run_dir),
                            ", or begin anew with another --run-dir");
}

// Takes the journal on where it was left, with a first record of what follows. A run that goes on
// has the id that its journal tells, which becomes `run_id`.
void begin_journal(TasksRun& run, Journal& journal, const std::string& mark, std::string& run_id) {
  const JournalState& before = run.before;
  check_journal_is_there(run);
  if (!before.cut.empty())
    log_warning("journal: ", before.cut);
  if (!run.is_new)
    end_left_over(run.run_dir, before.marks);
  journal.begin_at(before.good_bytes, before.last_sum);
  if (before.head.run_id.empty()) {
    const std::string hash = hash_of(read_file(task_file_path(run.run_dir)));
    journal.head({run_id, hash, mark}, run.file.tasks.size());
  } else {
    run_id = before.head.run_id;
    journal.resume(mark, before.seconds);
  }
  journal.sync();
}

// Results of an earlier run, as the next one finds them: what is not done starts again.
TaskResults results_before(const TasksRun& run) {
  TaskResults results = run.before.results;
  for (TaskResult& result : results) {
    if (result.state != TaskState::done)
      result.state = TaskState::waiting;
  }
  return results;
}

// A journal that cannot be opened, or is another run's, is wrong usage: nothing has begun yet.
Journal opened_journal(const TasksRun& run) {
  try {
    return Journal(run.run_dir);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::failed_precondition)
      fail_usage(error.message());
    fail_usage(error.message(), "; give another folder with --run-dir");
  }
}

// The options of the runner, for a run whose journal has begun.
RunnerOptions runner_options(const TasksOptions& options,
                             const TasksRun& run,
                             const std::string& mark,
                             const std::string& run_id,
                             TaskMachines& machines) {
  return {.facts = {.run_dir = run.run_dir,
                    .mark = mark,
                    .launcher = own_program(),
                    .environment = own_environment(),
                    .grace = options.shutdown_timeout,
                    .lease = run.settings.lease,
                    .visibility = run.settings.visibility.value_or(Visibility::job)},
          .run_id = run_id,
          .allow_nan = run.settings.allow_nan,
          .fail_fast = run.settings.fail_fast.value_or(false),
          .wait = options.wait,
          .time_limit = options.time_limit,
          .began = run.before.seconds,
          .remote = &machines.connections,
          .earlier = run.before.marks};
}

// A task that has not ended counts as skipped from here on.
void skip_the_rest(RunOutcome& outcome) {
  for (TaskResult& result : outcome.results) {
    if (!is_one_of(result.state, TaskState::waiting, TaskState::running))
      continue;
    result.state = TaskState::skipped;
    if (result.reason.empty())
      result.reason = "the run was ended before it could start";
  }
}

// Prints the table or JSON, then writes the files that were asked for.
void tell_results(const TasksOptions& options,
                  const TasksRun& run,
                  const Inventory& inventory,
                  const RunOutcome& outcome) {
  const auto& tasks = run.file.tasks;
  try {
    write_all(STDOUT_FILENO,
              options.json ? results_json(tasks, outcome.results)
                           : results_table(tasks, outcome.results));
  } catch (const ReaderGone&) {  // costs neither the files nor the exit code
  }
  write_result_files(options.files, tasks, outcome.results, inventory, file_name(run.run_dir));
}

// A run that goes on has the files of its settings, whose relative paths are of its own folder.
ResultFiles result_files_of(const TasksOptions& options, const TasksRun& run) {
  ResultFiles files = options.files;
  files.read.push_back({run.spec(), "the tasks are read from it"});
  files.read.push_back({run.settings.inventory, "the machine is read from it"});
  return files;
}

// Runs the tasks from the making of the folder to the results. Returns the exit code.
int start_run(const TasksOptions& options,
              TasksRun& run,
              TaskMachines& machines,
              TaskSchedule& schedule) {
  std::string run_id = make_uuid();
  check_replaces_nothing(run);
  const auto task_list = to_text(run.file);  // before a folder is made for what cannot be
  begin_run_folder(run, run_id);
  Journal journal = opened_journal(run);
  if (run.is_new) {
    write_file(task_file_path(run.run_dir), task_list);
  } else if (fs::exists(journal_path(run.run_dir))) {
    run.before = read_journal(run.run_dir, run.file.tasks);  // nobody writes it any more
    end_lost_attempts(run.before);
  }
  const auto mark = make_uuid();
  begin_journal(run, journal, mark, run_id);
  const RunnerOptions runner = runner_options(options, run, mark, run_id, machines);
  const DevicePool& pool = schedule.pool();
  const int here = machines.here();
  warn_of_simulation(machines);
  warn_of_others(pool, here);
  const PoolGpus gpus_here = here < 0 ? PoolGpus() : pool.hosts()[here].gpus;
  const JobRegistration registration(note_of(options, run, gpus_here, run_id));
  RunOutcome outcome;
  {
    // The table ends, and the hosts are closed, before the results are printed.
    LiveTableOptions shown = live_table_options(options.quiet);
    shown.hosts = pool.hosts().size() > 1;
    LiveTable view(run.file.tasks, shown, run.before.results);
    if (!options.quiet)
      view.note(cat("the run's folder is ", run.run_dir));
    outcome = run_tasks(run.file.tasks, schedule, journal, results_before(run), runner, view);
    close_hosts(machines.connections);
  }
  const int exit_code = exit_code_of(outcome);
  skip_the_rest(outcome);
  tell_results(options, run, pool.inventory(), outcome);
  return exit_code;
}

int say(const std::string& text) {
  write_all(STDOUT_FILENO, text);
  return 0;
}

}  // namespace

// Both kinds of preview end here, before anything is made.
int tasks::run(const TasksOptions& options) {
  const KeptRequests kept;
  TasksRun run = which_run(options);
  const bool only_says = options.dry_run || !options.explain.empty();
  if (only_says && !run.is_new && !is_in_use(run.run_dir))
    end_lost_attempts(run.before);
  TaskMachines machines = machines_of(options, run, only_says);
  TaskSchedule schedule = schedule_of(options, run, machines);
  if (!options.explain.empty())
    return say(why_task_waits(options.explain, run, machines, schedule, options.json));
  if (options.dry_run)
    return say(first_starts(run, machines, schedule, options.json));
  check_result_files(result_files_of(options, run), run.run_dir);
  return start_run(options, run, machines, schedule);
}

void tasks::submit(const TasksOptions& options, const Strings& sbatch) {
  TasksRun run = which_run(options);
  submit_to_slurm(run, sbatch, options.dry_run);
}

}  // namespace muster
