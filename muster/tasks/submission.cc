// The plan of the arrays is made before anything is written, so that tasks that Slurm cannot be
// asked for leave no folder behind. A dry run prints the plan; else its files are written and its
// arrays submitted.
#include "muster/tasks/submission.h"

#include <unistd.h>

#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/fd.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/own_program.h"
#include "muster/base/shell.h"
#include "muster/base/text_of.h"
#include "muster/base/usage.h"
#include "muster/launch/job_setup.h"
#include "muster/tasks/slurm/submit.h"

namespace muster {

namespace {

constexpr size_t kMaxNamesShown = 5;

// The array's tasks, the first few by name.
std::string names_in(const SlurmArray& array, const Tasks& tasks) {
  return join_first(
      mapped(array.tasks, [&](const size_t task) { return printable(tasks[task].name); }),
      ", ",
      kMaxNamesShown);
}

// The commands that would be executed. The jobs' numbers are not known yet: JOB0, JOB1 … stand for
// them.
std::string shown(const SlurmPlan& plan, const Tasks& tasks, const SlurmOptions& options) {
  std::string text;
  Strings jobs;
  for (const size_t i : indices_of(plan.arrays)) {
    const SlurmArray& array = plan.arrays[i];
    text += cat("# JOB", i, ": ", names_in(array, tasks), "\n");
    text += cat(shell_command(sbatch_argv(array, options, jobs)), "\n");
    text += sum_of<std::string>(split(trim(array.script), '\n'),
                                [&](const auto& line) { return cat("    ", line, "\n"); });
    jobs.push_back(cat("JOB", i));
  }
  return cat(text,
             "# ",
             plural(tasks.size(), "task"),
             " as ",
             plural(jobs.size(), "job"),
             "; nothing was submitted (--dry-run)\n");
}

// The jobs in a file that submit_slurm wrote; none when the file is somebody's own.
Strings jobs_in(const std::string& path) {
  Strings jobs;
  try {
    const auto document = nlohmann::json::parse(read_small_file(path));
    for (const auto& job : document.at("jobs"))
      jobs.push_back(printable(job.at("job").get<std::string>()));
  } catch (const std::exception&) {
    return {};
  }
  return jobs;
}

// A second submission from the folder would lose the first one's jobs from its books.
void check_not_submitted(const std::string& run_dir) {
  const auto path = run_dir + "/slurm/jobs.json";
  if (!std::filesystem::exists(path))
    return;
  const Strings jobs = jobs_in(path);
  const auto names = join_first(jobs, ", ", kMaxNamesShown);
  std::string what = "which has slurm/jobs.json";
  if (!jobs.empty())
    what = cat(word_for(jobs.size(), "of job ", "of jobs "), names);
  fail_usage("--run-dir: expected a folder that nothing was submitted from, got '",
             printable(run_dir),
             "', ",
             what,
             "; see squeue, and give another folder");
}

}  // namespace

// The folder is checked before the plan is made, and made after it.
void submit_to_slurm(TasksRun& run, const Strings& sbatch, bool dry_run) {
  choose_run_folder(run, make_uuid());
  check_not_submitted(run.run_dir);
  SlurmOptions options{.run_dir = run.run_dir,
                       .visibility = run.settings.visibility.value_or(Visibility::job),
                       .exec_element = {own_program(), "tasks", "--exec-element"}};
  append_all(options.sbatch, sbatch);
  const Tasks& tasks = run.file.tasks;
  const SlurmPlan plan = plan_slurm(tasks, options);
  for (const auto& note : plan.notes)
    log_info(note);
  if (dry_run)
    return write_all(STDOUT_FILENO, shown(plan, tasks, options));
  check_replaces_nothing(run);
  begin_run_folder(run, "");
  const Strings jobs = submit_slurm(plan, tasks, options);
  write_all(STDOUT_FILENO,
            cat("submitted ",
                plural(tasks.size(), "task"),
                " as ",
                plural(jobs.size(), "job"),
                ": ",
                join(jobs, ", "),
                "; see ",
                run.run_dir,
                "/slurm/jobs.json and squeue\n"));
}

}  // namespace muster
