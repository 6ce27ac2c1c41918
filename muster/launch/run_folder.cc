// A run's folder lies in runs/ unless the user names one, and the link runs/latest names the
// newest. Jobs may begin and end at the same time, so the link changes in one step, under a lock
// where the file system has locks.
#include "muster/launch/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folder_lock.h"
#include "muster/base/folder_owner.h"
#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/named_file.h"
#include "muster/base/strings.h"
#include "muster/launch/job_setup.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr auto kRunsFolder = "runs";
constexpr auto kLatest = "latest";
// The launcher itself puts these into a folder. The activity of ranks is of use only beside
// results.
constexpr const char* kLaunchersOwn[] = {
    "plan.json", kPlanParts, "run.json", "activity", "breakdown.json", kFolderLock};
// Jobs, their ranks and runs of tasks keep these there too.
constexpr const char* kOfRuns[] = {"failure.json",
                                   "metrics.jsonl",
                                   "journal",
                                   "tasks.json",
                                   "slurm",
                                   "logs",
                                   "trace",
                                   "trace.json",
                                   "hosts",
                                   "checkpoints"};

// Whether the folder is one of those that runs get below the current folder.
bool lies_in_runs(const fs::path& run_dir) {
  std::error_code error;
  const fs::path runs = fs::current_path(error) / kRunsFolder;
  return !error && fs::equivalent(run_dir.parent_path(), runs, error);
}

// Lets one launcher at a time change the link. Without the lock the change is still one step, so a
// file system that has no locks, or a process that keeps it, holds up no job.
Fd lock_runs(const fs::path& runs) {
  constexpr std::chrono::seconds kPatience{1};
  Fd fd(::open(runs.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto deadline = Clock::now() + kPatience;
  while (fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
      continue;
    }
    log_debug("no lock on ", runs.string(), "; going on without");
    break;
  }
  return fd;
}

// The link's text is the run's name alone, so that the folder can be moved or mounted elsewhere.
void replace_latest(const fs::path& runs, const fs::path& name) {
  std::error_code error;
  const fs::path latest = runs / kLatest;
  const auto kind = fs::symlink_status(latest, error).type();
  if (!is_one_of(kind, fs::file_type::not_found, fs::file_type::symlink)) {
    log_warning(latest.string(),
                " is no link to the newest run, which is ",
                name.string(),
                "; remove it, and the next run makes the link");
    return;
  }
  const fs::path aside = runs / cat(".", kLatest, "-", make_uuid());
  fs::create_symlink(name, aside, error);
  if (!error)
    fs::rename(aside, latest, error);
  if (!error)
    return;
  log_debug("no link ", latest.string(), ": ", error.message());
  ::unlink(aside.c_str());
}

// The name of the folder that changed last; nothing when there is none.
std::optional<fs::path> newest_run(const fs::path& runs) {
  std::optional<fs::path> newest;
  fs::file_time_type changed;
  std::error_code ignored;
  for (const fs::path& path : paths_in(runs)) {
    std::error_code unknown;
    if (fs::symlink_status(path, unknown).type() != fs::file_type::directory)
      continue;
    const auto at = fs::last_write_time(path, unknown);
    const bool is_newer = !newest || at > changed;
    if (unknown || !is_newer)
      continue;
    newest = path.filename();
    changed = at;
  }
  return newest;
}

bool is_launchers_own(const std::string& name) {
  return contains(kLaunchersOwn, name);
}

// A file that is being written has its name and more (name_aside).
bool will_be_launchers_own(const std::string& name) {
  return is_launchers_own(name.substr(0, name.find(".tmp-")));
}

// Whether the folder can be read, and what it holds has such names alone.
bool all_names_are(bool (*is_such)(const std::string&), const fs::path& run_dir) {
  std::error_code error;
  const auto paths = paths_in(run_dir, error);
  const bool all_are =
      all_of(paths, [&](const fs::path& path) { return is_such(path.filename().string()); });
  return all_are && !error;
}

}  // namespace

// The path's links are followed, so that a file of the run is found under other names as well.
void check_not_of_run(const char* flag, const std::string& path, const std::string& run_dir) {
  std::error_code none;
  const fs::path whole = fs::weakly_canonical(behind_links(path), none);
  const fs::path within = whole.lexically_relative(fs::weakly_canonical(run_dir, none));
  const std::string name = within.empty() ? "" : within.begin()->string();
  if (is_launchers_own(name) || contains(kOfRuns, name))
    refuse_named(
        flag, kWritableFile, path, cat("the run in ", printable(run_dir), " keeps its own there"));
}

// A link, such as runs/latest, stands for the folder that it names now: it may name another soon.
std::string resolve_run_folder(const std::string& path) {
  fs::path absolute = absolute_path(path);
  std::error_code is_none;
  if (!absolute.has_filename())
    absolute = absolute.parent_path();  // "runs/latest/"
  if (fs::is_symlink(absolute, is_none)) {
    const fs::path target = fs::canonical(absolute, is_none);
    if (!is_none)
      return target.string();
  }
  return absolute.string();
}

// The owner is checked before and after: somebody else may have made the folder meanwhile.
bool make_run_folder(const std::string& run_dir, std::string* latest_before) {
  std::error_code error;
  check_folder_owner(run_dir);
  const bool is_new = fs::create_directories(run_dir, error);
  if (error) {
    throw Error(ErrorCode::io,
                "cannot create the run's folder '",
                printable(run_dir),
                "': ",
                error.message(),
                "; give another with --run-dir");
  }
  check_folder_owner(run_dir);
  const auto before = link_latest(run_dir);
  if (latest_before != nullptr)
    *latest_before = before;
  return is_new;
}

std::string link_latest(const std::string& run_dir) {
  const fs::path folder = run_dir;
  const bool is_within_run = get_env("MUSTER_RUN_DIR").has_value();
  if (is_within_run || !lies_in_runs(folder))
    return "";
  const Fd lock = lock_runs(folder.parent_path());
  std::error_code is_none;
  const fs::path before = fs::read_symlink(folder.parent_path() / kLatest, is_none);
  replace_latest(folder.parent_path(), folder.filename());
  return before.string();
}

// The launchers of other hosts may remove the folder meanwhile; the answer is then false.
bool holds_only(const std::string& folder, const std::string& name) {
  std::error_code is_gone;
  const auto paths = paths_in(folder, is_gone);
  return !is_gone && paths.size() == 1 && paths[0].filename() == name;
}

bool may_be_unused(const std::string& run_dir) {
  return lies_in_runs(run_dir) && all_names_are(will_be_launchers_own, run_dir);
}

// The lock keeps another launcher from making the folder the newest while it goes.
void remove_unused_run_folder(const std::string& run_dir, const std::string& latest_before) {
  const fs::path folder = run_dir;
  if (!lies_in_runs(folder))
    return;
  const fs::path runs = folder.parent_path();
  const Fd lock = lock_runs(runs);
  if (!all_names_are(is_launchers_own, folder))
    return;
  std::error_code error;
  for (const char* const name : kLaunchersOwn)
    fs::remove_all(folder / name, error);
  if (::rmdir(folder.c_str()) != 0 || fs::read_symlink(runs / kLatest, error) != folder.filename())
    return;
  // Times of folders may be those of a clock that was set since.
  if (!latest_before.empty() && fs::is_directory(runs / latest_before, error))
    return replace_latest(runs, latest_before);
  if (const auto before = newest_run(runs))
    return replace_latest(runs, *before);
  ::unlink((runs / kLatest).c_str());
}

}  // namespace muster
