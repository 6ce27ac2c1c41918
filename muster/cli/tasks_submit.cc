#include "muster/cli/tasks_submit.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"
#include "muster/cli/usage.h"
#include "muster/launch/agent.h"
#include "muster/launch/job_setup.h"
#include "muster/tasks/slurm/submit.h"

namespace muster {

namespace {

constexpr size_t kMaxNamesShown = 5;

struct RefusedFlag {
  const char* name;
  bool given;
  const char* next;
};

// What is said of where, when and how tasks run is Slurm's to decide.
void check_submit(const TasksFlags& flags, const TasksRun& run) {
  if (flags.submit != "slurm")
    fail_usage(cat("--submit: expected slurm, got '", printable(flags.submit), "'"));
  const char* const devices = "Slurm chooses the devices: say in the spec what tasks need";
  const char* const nodes = "Slurm knows its own nodes";
  const char* const books = "Slurm keeps the books: see RUN_DIR/slurm/jobs.json and sacct";
  const char* const order = "Slurm decides when tasks run: give it a flag of its own with --sbatch";
  const char* const ends = "Slurm ends tasks: time_limit in the spec, or a flag of its own with --sbatch";
  const RefusedFlag refused[] = {
      {"--resume", !run.is_new, "Slurm keeps its own books"},
      {"--gpus", !flags.gpus.empty(), devices},
      {"--cpus", flags.cpus > 0, devices},
      {"--numa-binding", !flags.numa_binding.empty(), devices},
      {"--no-lease", flags.no_lease, devices},
      {"--inventory", !flags.inventory.empty(), nodes},
      {"--hosts", !flags.hosts.empty() || !flags.hostfile.empty(), nodes},
      {"--standalone", flags.standalone, nodes},
      {"--ssh", !flags.ssh.empty(), nodes},
      {"--remote-muster", !flags.remote_muster.empty(), nodes},
      {"--jobs", flags.jobs > 0, order},
      {"--wait", !flags.wait.empty(), order},
      {"--explain", !flags.explain.empty(), "ask squeue why a job waits"},
      {"--fail-fast", flags.fail_fast, ends},
      {"--allow-nan", flags.allow_nan, books},
      {"--time-limit", !flags.time_limit.empty(), ends},
      {"--shutdown-timeout", !flags.grace.empty(), ends},
      {"--json", flags.json, books},
      {"--csv", !flags.csv.empty(), books},
      {"--html", !flags.html.empty(), books},
  };
  for (const RefusedFlag& flag : refused) {
    if (flag.given)
      fail_usage(cat("--submit slurm and ", flag.name, ": expected one of them, got both; ", flag.next));
  }
}

std::string names_in(const SlurmArray& array, const std::vector<Task>& tasks) {
  std::vector<std::string> names;
  for (const size_t task : array.tasks) names.push_back(printable(tasks[task].name));
  return join_first(std::move(names), ", ", kMaxNamesShown);
}

// As a shell takes it; a word that is plain is left as it is.
std::string shell_word(const std::string& word) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("_@%+=:,./-", c) != nullptr;
  };
  return !word.empty() && std::all_of(word.begin(), word.end(), is_plain) ? word : shell_quoted(word);
}

// What would be executed. The jobs' numbers are not known yet: JOB0, JOB1 … stand for them.
std::string shown(const SlurmPlan& plan, const std::vector<Task>& tasks, const SlurmOptions& options) {
  std::string text;
  std::vector<std::string> jobs;
  for (size_t i = 0; i < plan.arrays.size(); ++i) {
    const SlurmArray& array = plan.arrays[i];
    std::vector<std::string> words;
    for (const std::string& word : sbatch_argv(array, options, jobs)) words.push_back(shell_word(word));
    text += cat("# JOB", i, ": ", names_in(array, tasks), "\n", join(words, " "), "\n");
    for (const std::string& line : split(trim(array.script), '\n')) text += cat("    ", line, "\n");
    jobs.push_back(cat("JOB", i));
  }
  return cat(text, "# ", plural(tasks.size(), "task"), " as ", plural(jobs.size(), "job"),
             "; nothing was submitted (--dry-run)\n");
}

// What was submitted from there before would be lost from its books.
void check_not_submitted(const std::string& run_dir) {
  const std::string path = run_dir + "/slurm/jobs.json";
  if (!std::filesystem::exists(path)) return;
  std::vector<std::string> jobs;
  try {
    const auto document = nlohmann::json::parse(read_small_file(path));
    for (const auto& job : document.at("jobs")) jobs.push_back(printable(job.at("job").get<std::string>()));
  } catch (const std::exception&) {
    jobs.clear();  // somebody's own: not named
  }
  fail_usage(cat(
      "--run-dir: expected a folder that nothing was submitted from, got '", printable(run_dir), "', ",
      jobs.empty() ? "which has slurm/jobs.json"
                   : cat(jobs.size() == 1 ? "of job " : "of jobs ", join_first(jobs, ", ", kMaxNamesShown)),
      "; see squeue, and give another folder"));
}

}  // namespace

int submit_tasks(const TasksFlags& flags, TasksRun& run) {
  check_submit(flags, run);
  choose_run_folder(run, make_uuid());
  check_not_submitted(run.run_dir);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  SlurmOptions options{.run_dir = run.run_dir,
                       .visibility = visibility_of(run),
                       .exec_element = {self, "tasks", "--exec-element"}};
  options.sbatch.insert(options.sbatch.end(), flags.sbatch.begin(), flags.sbatch.end());
  const std::vector<Task>& tasks = run.file.tasks;
  const SlurmPlan plan = plan_slurm(tasks, options);
  for (const std::string& note : plan.notes) log(LogLevel::info, note);
  if (flags.dry_run) {
    write_all(STDOUT_FILENO, shown(plan, tasks, options));
    return 0;
  }
  begin_run_folder(run, "");
  const std::vector<std::string> jobs = submit_slurm(plan, tasks, options);
  write_all(STDOUT_FILENO,
            cat("submitted ", plural(tasks.size(), "task"), " as ", plural(jobs.size(), "job"), ": ",
                join(jobs, ", "), "; see ", run.run_dir, "/slurm/jobs.json and squeue\n"));
  return 0;
}

}  // namespace muster
