// A new run takes its tasks from the command line, and its folder must have no journal. A run that
// goes on takes everything from its folder: the tasks and settings of tasks.json, over which the
// settings of the command line win, and the state that the journal tells. It also changes to the
// folder that the run began in, to which relative paths of tasks refer.
#include "muster/tasks/which_run.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folder_owner.h"
#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/named_file.h"
#include "muster/base/strings.h"
#include "muster/base/usage.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/run_folder.h"
#include "muster/tasks/spec/spec.h"
#include "muster/tasks/spec/sweep.h"

namespace muster {

namespace {

// The tasks of the command line, and what their spec file says.
struct TypedTasks {
  Tasks tasks{};
  std::string spec_text{};
};

TypedTasks typed_tasks(const TasksOptions& options, Strings* warnings = nullptr) {
  if (options.sweep)
    return {tasks_of_sweep(*options.sweep, warnings)};
  std::string text = read_spec(options.spec);
  return {tasks_of_text(text, options.spec, warnings), std::move(text)};
}

// A command line that says where the run goes on takes the place of all that said so when it began:
// the texts of the places that it does not name are dropped.
void forget_other_places(const TasksSettings& now, StringMap& settings) {
  const bool hosts = !now.hosts.empty();
  if (!hosts && !now.standalone && now.inventory.empty())
    return;
  for (const char* const name : {"hosts", "standalone", "inventory"})
    settings.erase(name);
  if (hosts)
    return;
  for (const char* const name : {"ssh", "remote-muster"})
    settings.erase(name);
}

// The text of the run folder's tasks.json.
std::string task_file_text(const std::string& path, const std::string& folder_given) {
  try {
    return read_plain_file(path);
  } catch (const Error&) {
    fail_usage("--resume: expected the folder of a run of tasks, got '",
               printable(folder_given),
               "', which has no tasks.json; see runs/");
  }
}

// A spec or sweep that is given again must have the tasks that the run began with.
void check_same_tasks(const TasksOptions& options, const Tasks& tasks) {
  const bool is_given = options.sweep || !options.spec.empty();
  if (is_given && typed_tasks(options).tasks != tasks)
    fail_usage("--resume: expected the tasks that ",
               printable(options.resume),
               " began with, got others; leave the spec out to resume with those, or begin "
               "anew without --resume");
}

// Relative paths of the tasks are of the folder that the run began in.
void enter_folder(const StringMap& settings) {
  const std::string folder = find_or(settings, "folder");
  if (!folder.empty() && ::chdir(folder.c_str()) != 0)
    fail_errno(errno, "--resume: cannot change to the run's folder '", folder, "'");
}

std::string absolute_folder(const std::string& path) {
  return std::filesystem::weakly_canonical(absolute_path(path)).string();
}

// The tasks are the run's only where tasks.json has the hash that the journal tells.
TasksRun run_in_folder(const TasksOptions& options) {
  TasksRun run{.run_dir = absolute_folder(options.resume), .is_new = false};
  const auto path = task_file_path(run.run_dir);
  const auto text = task_file_text(path, options.resume);
  run.file = task_file_of(text, path);
  check_same_tasks(options, run.file.tasks);
  run.before = std::filesystem::exists(journal_path(run.run_dir))
                   ? read_journal(run.run_dir, run.file.tasks)
                   : blank_state(run.file.tasks.size());
  const auto& hash = run.before.head.tasks_hash;
  if (!hash.empty() && hash != hash_of(text))
    throw failed_precondition(
        "--resume: expected ", path, " as the run had written it, got another; restore it");
  forget_other_places(options.settings, run.file.settings);
  for (const auto& [name, value] : to_texts(options.settings))
    run.file.settings[name] = value;
  run.settings = settings_of(run.file.settings);
  enter_folder(run.file.settings);
  return run;
}

// Throws: invalid_argument for a folder that has a file or folder of this name: `what` that is.
void check_without(const std::string& name,
                   const std::string& run_dir,
                   const char* what,
                   const char* next_step) {
  if (!run_dir.empty() && path_exists(cat(run_dir, "/", name)))
    fail_usage("--run-dir: expected a folder without a run, got '",
               printable(run_dir),
               "', which has ",
               what,
               "; ",
               next_step);
}

// The settings are kept as texts too, for a run that goes on later.
TasksRun new_run(const TasksOptions& options) {
  Strings warnings;
  TypedTasks typed = typed_tasks(options, &warnings);
  for (const auto& warning : warnings)
    log_warning(warning);
  TasksRun run{.file = {.settings = to_texts(options.settings), .tasks = std::move(typed.tasks)},
               .settings = options.settings,
               .spec_text = std::move(typed.spec_text)};
  run.file.settings["folder"] = current_folder();
  if (!options.spec.empty())
    run.file.settings["spec"] = options.spec;
  if (!options.run_dir.empty())
    run.run_dir = absolute_folder(options.run_dir);
  check_without(
      "journal", options.run_dir, "a journal", "resume it with --resume, or give another");
  check_without("run.json", options.run_dir, "the run of a job (run.json)", "give another");
  return run;
}

}  // namespace

std::string TasksRun::spec() const {
  return find_or(file.settings, "spec");
}

TasksRun which_run(const TasksOptions& options) {
  return options.resume.empty() ? new_run(options) : run_in_folder(options);
}

void check_replaces_nothing(const TasksRun& run) {
  if (!run.is_new)
    return;
  check_without("tasks.json", run.run_dir, "a tasks.json of no run", "move that, or give another");
  check_without("logs", run.run_dir, "a folder logs of no run", "move that, or give another");
}

void choose_run_folder(TasksRun& run, const std::string& run_id) {
  if (run.run_dir.empty())
    run.run_dir = absolute_path(run_folder_of({.run_id = run_id}));
}

// The owner is checked before the folder is made, of what is there, and after, of what has been
// made: nothing is written into another user's folder.
void begin_run_folder(TasksRun& run, const std::string& run_id) {
  choose_run_folder(run, run_id);
  std::error_code error;
  check_folder_owner(run.run_dir);
  std::filesystem::create_directories(run.run_dir, error);
  if (error)
    refuse_named("--run-dir", kNewFolder, run.run_dir, error.message());
  check_folder_owner(run.run_dir);
  if (::access(run.run_dir.c_str(), W_OK | X_OK) != 0)
    refuse_named("--run-dir", kWritableFolder, run.run_dir, std::strerror(errno));
  link_latest(run.run_dir);
}

}  // namespace muster
