#include "muster/cli/tasks_which_run.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/cli/tasks_machines.h"
#include "muster/cli/usage.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/run_folder.h"
#include "muster/tasks/spec/spec.h"
#include "muster/tasks/spec/sweep.h"

namespace muster {

namespace {

// What a sweep's tasks have in common.
Task common_of(const TasksFlags& flags) {
  Task common{.retries = flags.retries.value_or(0)};
  if (flags.need_gpus.empty() && flags.need_memory.empty() && flags.need_cpus.empty()) return common;
  TaskNeed need;
  try {
    size_t used = 0;
    if (!flags.need_gpus.empty()) need.gpus = std::stod(flags.need_gpus, &used);
    if (used != flags.need_gpus.size() || std::isnan(need.gpus)) throw std::invalid_argument("");
  } catch (const std::exception&) {
    fail_usage(cat("--need-gpus: expected a number as 2 or 0.5, got '", printable(flags.need_gpus), "'"));
  }
  const bool whole = need.gpus == std::floor(need.gpus);
  if (need.gpus < 0 || need.gpus > 1'000 || (need.gpus > 1 && !whole))
    fail_usage(cat("--need-gpus: expected a whole number, or a share below 1, got ", flags.need_gpus));
  if (!flags.need_memory.empty()) {
    try {
      need.memory_bytes = parse_bytes(flags.need_memory);
    } catch (const Error&) {
      fail_usage(
          cat("--need-memory: expected a size such as 20GiB, got '", printable(flags.need_memory), "'"));
    }
  }
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

// Flags that say of a sweep's tasks what a file says of its own: refused where there is no sweep.
void check_sweep_flags(const TasksFlags& flags) {
  struct SweepFlag {
    const char* name;
    bool given;
    const char* key;
  };
  const SweepFlag all[] = {
      {"--retries", flags.retries.has_value(), "retries = N"},
      {"--need-gpus", !flags.need_gpus.empty(), "needs = { gpus = N }"},
      {"--need-memory", !flags.need_memory.empty(), "needs = { gpus = 1, memory = \"20GiB\" }"},
      {"--need-cpus", !flags.need_cpus.empty(), "needs = { cpus = N }"},
  };
  if (!flags.sweeps.empty()) return;
  for (const SweepFlag& flag : all) {
    if (!flag.given) continue;
    if (!flags.resume.empty() && flags.spec.empty())
      fail_usage(cat(flag.name,
                     " and --resume: expected one of them, got both; a run goes on with the tasks that ",
                     "it began with"));
    fail_usage(cat(flag.name, ": expected --sweep beside it, got ",
                   flags.spec.empty() ? "none" : cat("the file ", printable(flags.spec)),
                   "; a file says it in [[task]] or [defaults]: ", flag.key));
  }
}

struct TypedTasks {
  std::vector<Task> tasks = {};
  std::string spec_text = {};
};

TypedTasks typed_tasks(const TasksFlags& flags, std::vector<std::string>* warnings = nullptr) {
  if (!flags.spec.empty() && (!flags.sweeps.empty() || !flags.command.empty()))
    fail_usage(cat("expected a spec file or --sweep … -- CMD, got both (", printable(flags.spec), " and ",
                   flags.sweeps.empty() ? "a command" : cat("--sweep ", printable(flags.sweeps[0])),
                   "); leave one of them out; a sweep's command comes after --"));
  if (!flags.spec.empty()) {
    std::string text = read_spec(flags.spec);
    return {tasks_of_text(text, flags.spec, warnings), std::move(text)};
  }
  if (!flags.sweeps.empty() && flags.command.empty())
    fail_usage("--sweep: expected a command after --, got none; as --sweep lr=0.1,0.01 -- ./train {lr}");
  if (flags.sweeps.empty())
    fail_usage(
        "expected a spec file, or --sweep NAME=VALUES … -- CMD, got neither; as in: muster tasks sweep.toml");
  return {tasks_of_sweep({.sweeps = flags.sweeps, .command = flags.command, .common = common_of(flags)},
                         warnings)};
}

// What the command line said of where tasks run: kept in the run's folder, for when it goes on.
std::map<std::string, std::string> settings_of(const TasksFlags& flags) {
  std::map<std::string, std::string> settings;
  const auto keep = [&](const char* name, const std::string& value) {
    if (!value.empty()) settings[name] = value;
  };
  keep("gpus", flags.gpus);
  keep("hosts", hosts_setting(flags));
  keep("ssh", flags.ssh);
  keep("remote-muster", flags.remote_muster);
  keep("standalone", flags.standalone ? "yes" : "");
  keep("inventory", flags.inventory.empty() ? "" : std::filesystem::absolute(flags.inventory).string());
  keep("cpus", flags.cpus > 0 ? cat(flags.cpus) : "");
  keep("jobs", flags.jobs > 0 ? cat(flags.jobs) : "");
  keep("fail-fast", flags.fail_fast ? "yes" : flags.keep_going ? "no" : "");
  keep("allow-nan", flags.allow_nan ? "yes" : "");
  keep("numa-binding", flags.numa_binding);
  if (!flags.visibility.empty()) keep("visibility", to_string(parse_visibility(flags.visibility)));
  keep("no-lease", flags.no_lease ? "yes" : "");
  return settings;
}

// Where a run goes on, when the command line says so, is not where it began.
void forget_other_places(const TasksFlags& flags, std::map<std::string, std::string>& settings) {
  const bool hosts = !flags.hosts.empty() || !flags.hostfile.empty();
  if (!hosts && !flags.standalone && flags.inventory.empty()) return;
  for (const char* const name : {"hosts", "standalone", "inventory"}) settings.erase(name);
  if (hosts) return;
  for (const char* const name : {"ssh", "remote-muster"}) settings.erase(name);
}

// The run in the folder. Its tasks are those that it began with: others are refused.
TasksRun run_in_folder(const TasksFlags& flags) {
  TasksRun run{.run_dir = std::filesystem::weakly_canonical(std::filesystem::absolute(flags.resume)).string(),
               .is_new = false};
  const std::string path = task_file_path(run.run_dir);
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error&) {
    fail_usage(cat("--resume: expected the folder of a run of tasks, got '", printable(flags.resume),
                   "', which has no tasks.json; see runs/"));
  }
  run.file = task_file_of(text, path);
  if (has_tasks(flags) && typed_tasks(flags).tasks != run.file.tasks)
    fail_usage(cat(
        "--resume: expected the tasks that ", printable(flags.resume),
        " began with, got others; leave the spec out to go on with those, or begin anew without --resume"));
  run.before = std::filesystem::exists(journal_path(run.run_dir)) ? read_journal(run.run_dir, run.file.tasks)
                                                                  : blank_state(run.file.tasks.size());
  if (!run.before.head.tasks_hash.empty() && run.before.head.tasks_hash != hash_of(text))
    throw Error(ErrorCode::failed_precondition,
                cat("--resume: expected ", path, " as the run had written it, got another; restore it"));
  forget_other_places(flags, run.file.settings);
  for (const auto& [name, value] : settings_of(flags)) run.file.settings[name] = value;
  if (const std::string folder = run.setting("folder"); !folder.empty() && ::chdir(folder.c_str()) != 0)
    fail_errno(cat("--resume: cannot change to the run's folder '", folder, "'"), errno);
  return run;
}

TasksRun new_run(const TasksFlags& flags) {
  std::vector<std::string> warnings;
  TypedTasks typed = typed_tasks(flags, &warnings);
  for (const std::string& warning : warnings) log(LogLevel::warn, warning);
  TasksRun run{.file = {.settings = settings_of(flags), .tasks = std::move(typed.tasks)},
               .spec_text = std::move(typed.spec_text)};
  run.file.settings["folder"] = std::filesystem::current_path().string();
  if (!flags.spec.empty()) run.file.settings["spec"] = flags.spec;
  if (!flags.run_dir.empty())
    run.run_dir = std::filesystem::weakly_canonical(std::filesystem::absolute(flags.run_dir)).string();
  if (!run.run_dir.empty() && std::filesystem::exists(journal_path(run.run_dir)))
    fail_usage(cat("--run-dir: expected a folder without a run, got '", printable(flags.run_dir),
                   "', which has a journal; go on with --resume, or give another"));
  return run;
}

}  // namespace

Visibility visibility_of(const TasksRun& run) {
  const std::string text = run.setting("visibility");
  return text.empty() ? Visibility::job : parse_visibility(text);
}

std::string TasksRun::setting(const char* name) const {
  const auto found = file.settings.find(name);
  return found == file.settings.end() ? std::string() : found->second;
}

TasksRun which_run(const TasksFlags& flags) {
  if (!flags.resume.empty() && !flags.run_dir.empty())
    fail_usage("--resume and --run-dir: expected one of them, got both; --resume names the run's folder");
  check_sweep_flags(flags);
  return flags.resume.empty() ? new_run(flags) : run_in_folder(flags);
}

void choose_run_folder(TasksRun& run, const std::string& run_id) {
  if (run.run_dir.empty())
    run.run_dir = std::filesystem::absolute(run_folder_of({.run_id = run_id})).string();
}

void begin_run_folder(TasksRun& run, const std::string& run_id) {
  choose_run_folder(run, run_id);
  std::error_code error;
  std::filesystem::create_directories(run.run_dir, error);
  if (error)
    fail_usage(cat("--run-dir: expected a folder that can be made, got '", printable(run.run_dir),
                   "': ", error.message(), "; give another"));
  if (::access(run.run_dir.c_str(), W_OK | X_OK) != 0)
    fail_usage(cat("--run-dir: expected a folder that can be written, got '", printable(run.run_dir),
                   "': ", std::strerror(errno), "; give another"));
  link_latest(run.run_dir);
}

}  // namespace muster
