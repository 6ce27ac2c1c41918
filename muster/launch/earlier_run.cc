// An earlier run is known by its record (run.json) or by its lock's note, which a launcher leaves
// before all else that it writes. So what a start would move or replace is looked for first, and
// the sign after it: a launcher of another host that begins meanwhile has left the sign by then.
#include "muster/launch/earlier_run.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/folder_lock.h"
#include "muster/base/folders.h"
#include "muster/base/lock_note.h"
#include "muster/base/strings.h"
#include "muster/launch/run_folder.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

// Files of a run that a start removes, or writes anew.
constexpr const char* kReplaced[] = {
    "plan.json", "run.json", "failure.json", "breakdown.json", "trace.json"};

bool is_number(const std::string& name) {
  return parse_int(name).has_value();
}

// What a start moves or removes in a folder of a run.
struct Moved {
  const char* folder;
  bool (*is_moved)(const std::string& name);
};

constexpr Moved kMoved[] = {
    {"logs", is_number},
    {"activity", is_number},
    {"trace", [](const std::string& /*any*/) { return true; }},
    {kPlanParts, [](const std::string& name) { return name.starts_with(kPlanPart); }}};

// How the file begins, without a look at what is no plain file.
std::string beginning_of(const fs::path& path) {
  constexpr size_t kBytes = 400;
  std::error_code is_none;
  if (!fs::is_regular_file(path, is_none))
    return "";
  std::string bytes(kBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), kBytes);
  bytes.resize(file.gcount());
  return bytes;
}

bool begins_with(const fs::path& path, const std::string& schema) {
  return has_text(beginning_of(path), cat("\"", schema, "/"));
}

// A lock without a note is a launcher's whose disk was full, or whose machine went down.
bool has_sign_of_run(const fs::path& folder) {
  const auto note = beginning_of(folder / kFolderLock);
  std::error_code is_none;
  const bool is_blank =
      fs::is_regular_file(folder / kFolderLock, is_none) && note.find_first_not_of('\0') == npos;
  return is_blank || is_lock_note(note) || begins_with(folder / "run.json", "muster.run");
}

// The first of the folder's entries that a start would move or remove; empty: none. What a link
// leads to stays anyway.
std::string moved_in(const fs::path& folder, bool (*is_moved)(const std::string& name)) {
  std::error_code is_none;
  const bool is_link = fs::is_symlink(folder, is_none);
  auto paths = is_link ? std::vector<fs::path>() : paths_in(folder);
  std::erase_if(paths, [&](const fs::path& path) { return !is_moved(path.filename().string()); });
  return paths.empty() ? "" : std::ranges::min(paths).string();
}

// The path of what a start would replace there; empty: nothing. A launcher that starts agents
// elsewhere leaves a report of their failure and nothing else.
std::string replaced_in(const fs::path& run_dir, const std::string& given_plan) {
  std::error_code none;
  for (const char* const name : kReplaced) {
    const fs::path path = run_dir / name;
    const bool is_taken =
        fs::equivalent(path, given_plan, none) || begins_with(path, "muster.failure");
    if (fs::exists(fs::symlink_status(path, none)) && !is_taken)
      return path.string();
  }
  for (const auto& [folder, is_moved] : kMoved) {
    if (std::string path = moved_in(run_dir / folder, is_moved); !path.empty())
      return path;
  }
  return "";
}

// `found`: what a start would move or replace; empty: nothing.
void check_is_of_run(const char* flag, const std::string& folder, const std::string& found) {
  if (found.empty() || has_sign_of_run(folder))
    return;
  throw invalid_argument(
      flag,
      ": expected a new folder or that of an earlier run, got '",
      printable(folder),
      "', where no run has left '",
      printable(found),
      "', which this one would move or replace; give another folder, or move that yourself");
}

// The logs of tasks have numbers for names too: they would move aside while tasks write there.
void check_not_of_tasks(const std::string& run_dir) {
  for (const auto& [name, schema] :
       {std::pair("journal", "muster.journal"), std::pair("tasks.json", "muster.task_list")}) {
    if (!begins_with(fs::path(run_dir) / name, schema))
      continue;
    throw invalid_argument("--run-dir: expected a folder of no tasks, got '",
                           printable(run_dir),
                           "', which has the run of muster tasks (",
                           name,
                           "); give another");
  }
}

}  // namespace

void check_run_folder(const std::string& run_dir, const std::string& given_plan) {
  check_not_of_tasks(run_dir);
  check_is_of_run("--run-dir", run_dir, replaced_in(run_dir, given_plan));
}

void check_log_folder(const std::string& log_dir) {
  check_is_of_run("--log-dir", log_dir, moved_in(log_dir, is_number));
}

// The logs of each attempt are a folder whose name is a number.
void move_earlier_logs(const std::string& log_dir) {
  std::error_code is_none;
  if (fs::is_symlink(log_dir, is_none))
    return;  // refused when a log is made
  auto attempts = paths_in(log_dir);
  std::erase_if(attempts,
                [](const fs::path& path) { return !is_number(path.filename().string()); });
  if (attempts.empty())
    return;
  int number = 1;
  std::error_code error;
  while (!fs::create_directory(cat(log_dir, "/earlier-", number), error) && !error)
    ++number;
  const fs::path earlier = cat(log_dir, "/earlier-", number);
  for (const fs::path& attempt : attempts) {
    if (!error)
      fs::rename(attempt, earlier / attempt.filename(), error);
  }
  if (!error)
    return;
  throw Error(ErrorCode::io,
              "cannot move the logs of an earlier start into '",
              printable(earlier.string()),
              "': ",
              error.message(),
              "; give another folder with --run-dir or --log-dir");
}

void remove_earlier_parts(const std::string& run_dir) {
  const auto folder = cat(run_dir, "/", kPlanParts);
  for (const fs::path& part : paths_in(fs::path(folder))) {
    if (part.filename().string().starts_with(kPlanPart))
      ::unlink(part.c_str());
  }
  ::rmdir(folder.c_str());
}

void remove_earlier_plan(const std::string& path, const std::string& given_plan) {
  std::error_code is_none;
  if (!fs::equivalent(path, given_plan, is_none))
    ::unlink(path.c_str());
}

}  // namespace muster
