#include "muster/cli/tasks.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "muster/base/strings.h"
#include "muster/base/usage.h"
#include "muster/cli/tasks_options.h"
#include "muster/cli/value_flags.h"
#include "muster/tasks/hosts/server.h"
#include "muster/tasks/run.h"
#include "muster/tasks/slurm/element.h"

namespace muster {

namespace {

constexpr const char* kTasksExamples = R"(Examples:
  muster tasks sweep.toml                    run the file's tasks on this machine's GPUs and CPUs
  muster tasks --sweep lr=0.1,0.01 --sweep seed=1..5 -- ./train --lr {lr} --seed {seed}
  muster tasks --gpus 0-3 --cpus 16 sweep.toml
  muster tasks --dry-run sweep.toml          what would start first, and where
  muster tasks --explain lr-0.1 --resume runs/8f3c…    why a task of a run waits
  muster tasks --resume runs/8f3c…           go on where a run was stopped or killed
  muster tasks --hosts a:4,b:8 sweep.toml    over the devices of other hosts too, by ssh
  muster tasks --submit slurm sweep.toml     let Slurm decide when and where
  muster tasks --csv results.csv --html timeline.html sweep.toml
Ctrl-C lets the tasks that run go on to their end and starts no more; a second one ends them.
Exit codes: 0 all tasks are done, 1 some are not, 2 wrong usage, 124 --time-limit, 128 + the signal that ended it.
)";

void add_what(CLI::App* command, TasksFlags& flags) {
  command->add_option("SPEC", flags.spec, "The tasks: a TOML file (docs/tasks.md)")
      ->check(not_empty("a spec file"));
  command
      ->add_option("--sweep", flags.sweeps,
                   "A task for each value: lr=0.1,0.01 or seed=1..5 (again for a grid)")
      ->type_name("NAME=VALUES")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  text_flag(command, "--need-gpus", flags.need_gpus, "N", "a number as 2 or 0.5",
            "Of a sweep: GPUs of each task, 2 or 0.5 [1, else a CPU]");
  text_flag(command, "--need-memory", flags.need_memory, "SIZE", "a size such as 20GiB",
            "Of a sweep: free memory on each of these GPUs, as 20GiB [any]");
  text_flag(command, "--need-cpus", flags.need_cpus, "N", "a number",
            "Of a sweep: CPUs of each task [1 without a GPU, else none counted]");
  command->add_option("--retries", flags.retries, "Of a sweep: starts after a failure [0]")
      ->type_name("N")
      ->check(whole_number_from(0));
  text_flag(command, "--resume", flags.resume, "DIR", "a folder",
            "Go on with the run in this folder: what is done stays done");
}

void add_where(CLI::App* command, TasksFlags& flags) {
  text_flag(command, "--gpus", flags.gpus, "SEL", "GPUs such as 0,2-5 or all",
            "GPUs to use: 0,2-5, !3, idle, model=A100, … [all]");
  count_flag(command, "--cpus,--cpu-slots", flags.cpus, "CPUs to use, which tasks without a GPU count [all]");
  count_flag(command, "--jobs", flags.jobs, "Tasks at a time at most, whatever there is room for [no limit]");
  text_flag(command, "--inventory", flags.inventory, "FILE", "a file",
            "The machine in this file instead of this one (simulated)");
  text_flag(command, "--hosts", flags.hosts, "LIST", "hosts such as a:4,b:8",
            "Hosts to use, over ssh, with how many tasks at a time: a:4,b:8,c [in a Slurm allocation: its "
            "nodes; else this machine]");
  reach_flags(command, flags.hostfile, flags.ssh, flags.remote_muster);
  command->add_flag("--standalone", flags.standalone, "This machine alone, in a Slurm allocation too");
  command->add_flag("--serve", flags.serve, "Run tasks for a run on another host")->group("");
  text_flag(command, "--numa-binding", flags.numa_binding, "MODE", "none, node or exclusive",
            "CPUs that tasks are kept on: none, node [near their GPUs], exclusive [their own alone]");
  text_flag(
      command, "--visibility", flags.visibility, "WHAT", "job, own, own-first or all",
      "Which of its task's GPUs a rank sees: job [all, in rank order], own, own-first, all [as the task]");
  command->add_flag("--no-lease", flags.no_lease, "Take no lease on the GPUs: other jobs may get the same");
  text_flag(command, "--wait", flags.wait, "TIME", "a time such as 10m",
            "When nothing else is to do: how long to wait for GPUs of other jobs [ever], and for hosts "
            "that were lost [1m]");
}

void add_how(CLI::App* command, TasksFlags& flags) {
  auto* const keep = command->add_flag("--keep-going", flags.keep_going,
                                       "After a failure: all that does not depend on it (the default)");
  command->add_flag("--fail-fast", flags.fail_fast, "After a failure: end what runs, start nothing more")
      ->excludes(keep);
  command->add_flag("--allow-nan", flags.allow_nan,
                    "A task whose result has NaN or an infinity is done, not failed");
  text_flag(command, "--time-limit", flags.time_limit, "TIME", "a time such as 2h",
            "Of the whole run: 2h, 30m; then it is ended, exit code 124 [none]");
  text_flag(command, "--shutdown-timeout", flags.grace, "TIME", "a time such as 30s",
            "Grace period between SIGTERM and SIGKILL [30s]");
  text_flag(command, "--run-dir", flags.run_dir, "DIR", "a folder",
            "Folder for the journal, logs and plans of a new run [runs/<id>]");
  command->add_flag("--dry-run", flags.dry_run,
                    "Show what would start first, and where; with --submit, what sbatch would get");
  text_flag(command, "--explain", flags.explain, "NAME", "a task's name",
            "Say why this task waits, and start nothing");
  text_flag(command, "--submit", flags.submit, "SYSTEM", "slurm",
            "Hand the tasks to a batch system as job arrays, and end: slurm");
  command
      ->add_option("--sbatch", flags.sbatch,
                   "With --submit: a flag of sbatch, as --sbatch=--partition=gpu (again for more)")
      ->type_name("FLAG")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--exec-element", flags.element, "An element of a job array: FILE INDEX")
      ->expected(2)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("");
  command->add_flag("--json", flags.json, "The results as JSON [a table]");
  text_flag(command, "--csv", flags.csv, "FILE", "a file",
            "The results, with parameters and what tasks printed, as a table");
  text_flag(command, "--html", flags.html, "FILE", "a file", "The timeline of the devices, as a page");
  command->add_flag("-q,--quiet", flags.quiet, "Only failures, and the results");
}

int element_index(const std::string& text) {
  const auto index = parse_int(text);
  if (!index || *index < 0 || *index > 100'000'000)
    fail_usage(cat("--exec-element: expected an index from 0, got '", printable(text), "'"));
  return static_cast<int>(*index);
}

int run_tasks_command(const TasksFlags& flags) {
  if (flags.element.size() == 2) exec_element(flags.element[0], element_index(flags.element[1]));
  if (flags.serve) return serve_tasks_of_another();
  if (flags.submit.empty()) return tasks::run(to_tasks_options(flags));
  check_submit(flags);
  tasks::submit(to_tasks_options(flags), flags.sbatch);
  return 0;
}

}  // namespace

void add_tasks(CLI::App& app, std::vector<std::string>& args, int* exit_code) {
  const auto flags = std::make_shared<TasksFlags>();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  CLI::App* const command =
      app.add_subcommand("tasks", "Run many commands over the GPUs and CPUs of this machine, or of several");
  command->footer(kTasksExamples);
  add_what(command, *flags);
  add_where(command, *flags);
  add_how(command, *flags);
  const auto dashes = std::find(args.begin(), args.end(), "--");
  if (dashes != args.end()) flags->command.assign(dashes + 1, args.end());
  args.erase(dashes, args.end());
  command->callback([flags, exit_code] { *exit_code = run_tasks_command(*flags); });
}

}  // namespace muster
