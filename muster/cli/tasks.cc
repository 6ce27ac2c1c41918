// The flags of `muster tasks`, in groups as --help shows them. tasks_options.h turns them into
// options. Two hidden flags are for muster itself: --serve runs tasks for a run on another host,
// and --exec-element is one task of a Slurm job array.
#include "muster/cli/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>

#include "muster/base/strings.h"
#include "muster/base/usage.h"
#include "muster/cli/tasks_options.h"
#include "muster/cli/value_flags.h"
#include "muster/launch/given_gpus.h"
#include "muster/tasks/hosts/server.h"
#include "muster/tasks/run.h"
#include "muster/tasks/slurm/element.h"

namespace muster {

namespace {

constexpr auto kTasksExamples = R"(Examples:
  muster tasks sweep.toml                    run the file's tasks on this machine's GPUs and CPUs
  muster tasks --sweep lr=0.1,0.01 --sweep seed=1..5 -- ./train --lr {lr} --seed {seed}
  muster tasks --gpus 0-3 --cpus 16 sweep.toml
  muster tasks --dry-run sweep.toml          show what would start first, and where
  muster tasks --explain lr-0.1 --resume runs/8f3c…    say why a task of a run waits
  muster tasks --resume runs/8f3c…           resume a run that was stopped or killed
  muster tasks --hosts a:4,b:8 sweep.toml    use the devices of other hosts too, over ssh
  muster tasks --submit slurm sweep.toml     let Slurm decide when and where
  muster tasks --csv results.csv --html timeline.html sweep.toml

A task that ends with exit code 75 was stopped and has saved: it is started again, which costs no retry.
Ctrl-C starts no more tasks and lets those that run end; a second Ctrl-C ends them.
Exit codes: 0 all tasks are done, 1 some are not, 2 wrong usage, 124 --time-limit, 128 + the signal that ended it.
)";

// These flags say which tasks there are, and what each of a sweep needs.
void add_task_flags(CLI::App* command, TasksFlags& flags) {
  command->add_option("SPEC", flags.spec, "A TOML file with the tasks (docs/tasks.md)")
      ->check(not_empty("a spec file"));
  repeated_flag(
      command,
      "--sweep",
      flags.sweeps,
      "NAME=VALUES",
      "Make a task for each value: lr=0.1,0.01 or seed=1..5; repeated, for each combination "
      "[none]");
  text_flag(command,
            "--need-gpus",
            flags.need_gpus,
            "N",
            "a number as 2 or 0.5",
            "GPUs that each task of a sweep needs, such as 2 or 0.5 [1; on a machine without GPUs "
            "a CPU]");
  text_flag(command,
            "--need-memory",
            flags.need_memory,
            "SIZE",
            "a size such as 20GiB",
            "Free memory that it needs on each of its GPUs, such as 20GiB [none]");
  text_flag(command,
            "--need-cpus",
            flags.need_cpus,
            "N",
            "a number",
            "CPUs that it needs [1; with a GPU none are counted]");
  command
      ->add_option("--retries",
                   flags.retries,
                   "How often a task of a sweep starts again after a failure [0]")
      ->type_name("N")
      ->check(whole_number_from(0));
  text_flag(command,
            "--resume",
            flags.resume,
            "DIR",
            "a folder",
            "Resume the run in this folder; tasks that are done do not run again [a new run]");
  entitle(command, "The tasks");
}

// These flags say which devices the tasks may use.
void add_task_device_flags(CLI::App* command, TasksFlags& flags) {
  text_flag(command,
            "--gpus",
            flags.gpus,
            "SEL",
            "GPUs such as 0,2-5 or all",
            "GPUs to use: 0,2-5, !3, idle, model=A100, … [all]");
  count_flag(command, "--cpus,--cpu-slots", flags.cpus, "Number of CPUs to use [all]");
  count_flag(command,
             "--jobs",
             flags.jobs,
             "Largest number of tasks that run at the same time [no limit]");
  text_flag(
      command,
      "--inventory",
      flags.inventory,
      "FILE",
      "a file",
      "Use the machine in this file instead of this one (simulated: tasks run on this CPU) [this "
      "machine]");
  command->add_flag(
      "--standalone", flags.standalone, "Use this machine alone, in a Slurm allocation too");
  // A flag without a group is hidden from --help.
  command->add_flag("--serve", flags.serve, "Run tasks for a run on another host")->group("");
  text_flag(command,
            "--numa-binding",
            flags.numa_binding,
            "MODE",
            "none, node or exclusive",
            "Bind each task to CPUs: none, node (those near its GPUs) or exclusive (no other task "
            "on them) [node]");
  text_flag(command,
            "--visibility",
            flags.visibility,
            "WHICH",
            "job, own, own-first or all",
            "GPUs that a rank of a task sees: job (all of the task's, in rank order), own, "
            "own-first or all [job]");
  command->add_flag("--no-lease",
                    flags.no_lease,
                    "Take no lease on the GPUs, so other jobs may be given the same ones");
  text_flag(command,
            "--wait",
            flags.wait,
            "TIME",
            "a time such as 10m",
            "How long to wait when only GPUs of other jobs, hosts that were lost, or processes and "
            "descriptors are left to wait for [for GPUs no limit, else 1m]");
  entitle(command, "Devices");
}

// These flags say which other hosts take part, or which batch system.
void add_host_flags(CLI::App* command, TasksFlags& flags) {
  text_flag(
      command,
      "--hosts",
      flags.hosts,
      "LIST",
      "hosts such as a:4,b:8",
      "Hosts to use over ssh, each with its largest number of tasks at the same time: a:4,b:8,c "
      "[in a Slurm allocation its nodes, else this machine]");
  reach_flags(command, flags.hostfile, flags.ssh, flags.remote_muster);
  text_flag(command,
            "--submit",
            flags.submit,
            "SYSTEM",
            "slurm",
            "Hand the tasks to a batch system as job arrays, and end: slurm [run them here]");
  repeated_flag(
      command,
      "--sbatch",
      flags.sbatch,
      "FLAG",
      "With --submit: pass this flag to sbatch, as --sbatch=--partition=gpu; may be repeated "
      "[none]");
  command->add_option("--exec-element", flags.element, "An element of a job array: FILE INDEX")
      ->expected(2)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("");
  entitle(command, "Several hosts");
}

// These flags say when the run ends, and what it does after a failure.
void add_limit_flags(CLI::App* command, TasksFlags& flags) {
  auto* const keep = command->add_flag(
      "--keep-going",
      flags.keep_going,
      "After a failure, run everything that does not depend on the failed task (the default)");
  command
      ->add_flag("--fail-fast",
                 flags.fail_fast,
                 "After a failure, end the tasks that run and start no more")
      ->excludes(keep);
  command->add_flag(
      "--allow-nan",
      flags.allow_nan,
      "Count a task as done although its result has NaN or an infinity [it has failed]");
  text_flag(command,
            "--time-limit",
            flags.time_limit,
            "TIME",
            "a time such as 2h, or slurm",
            "Time limit of the whole run, such as 2h: muster ends it then, with exit code 124; "
            "slurm: in time before Slurm ends its job; slurm-10m: ten minutes before [none]");
  text_flag(command,
            "--shutdown-timeout",
            flags.grace,
            "TIME",
            "a time such as 30s",
            "Grace period between SIGTERM and SIGKILL [30s]");
  entitle(command, "Limits and failures");
}

// These flags say what is shown, and where results go.
void add_task_output_flags(CLI::App* command, TasksFlags& flags) {
  text_flag(command,
            "--run-dir",
            flags.run_dir,
            "DIR",
            "a folder",
            "The run's folder, for journal, logs and plans [runs/<id>]");
  command->add_flag("--dry-run",
                    flags.dry_run,
                    "Show what would start first, and where, and start nothing; with --submit, "
                    "show what sbatch would get");
  text_flag(command,
            "--explain",
            flags.explain,
            "NAME",
            "a task's name",
            "Say why this task waits, and start nothing [none]");
  command->add_flag("--json", flags.json, "Print the results as JSON [as a table]");
  text_flag(command,
            "--csv",
            flags.csv,
            "FILE",
            "a file",
            "Write the results into this file as CSV, with parameters and the numbers that tasks "
            "printed [none]");
  text_flag(command,
            "--html",
            flags.html,
            "FILE",
            "a file",
            "Draw the timeline of the devices into this page [none]");
  command->add_flag("-q,--quiet", flags.quiet, "Print only failures and the results");
  entitle(command, "Output");
}

// Slurm numbers the elements of an array from 0.
int element_index(const std::string& text) {
  const auto index = parse_number(text, 0, 100'000'000);
  if (!index)
    fail_usage("--exec-element: expected an index from 0, got '", printable(text), "'");
  return *index;
}

// Returns the exit code.
int run_tasks_command(const TasksFlags& flags) {
  if (flags.inventory.empty() && flags.submit.empty())
    keep_to_given_gpus();
  if (flags.element.size() == 2)
    exec_element(flags.element[0], element_index(flags.element[1]));
  if (flags.serve)
    return serve_tasks_of_another();
  if (flags.submit.empty())
    return tasks::run(to_tasks_options(flags));
  check_submit(flags);
  tasks::submit(to_tasks_options(flags), flags.sbatch);
  return 0;
}

}  // namespace

// A flag that is given twice has its last value.
void add_tasks(CLI::App& app, Strings& args, int* exit_code) {
  const auto flags = std::make_shared<TasksFlags>();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  auto* const command =
      app.add_subcommand("tasks",
                         "Run many commands over the GPUs and CPUs of this machine, or of several")
          ->footer(kTasksExamples);
  add_task_flags(command, *flags);
  add_task_device_flags(command, *flags);
  add_host_flags(command, *flags);
  add_limit_flags(command, *flags);
  add_task_output_flags(command, *flags);
  // The command of a sweep follows "--"; CLI11 must not see its flags.
  const auto dashes = std::ranges::find(args, "--");
  if (dashes != args.end())
    flags->command.assign(dashes + 1, args.end());
  args.erase(dashes, args.end());
  command->callback([flags, exit_code] { *exit_code = run_tasks_command(*flags); });
}

}  // namespace muster
