// The folder of a run: made when it begins, found again by the link `runs/latest`, removed when it
// holds nothing in the end. For launchers and `muster tasks`; knows nothing of what they write but
// plan.json and run.json.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace muster {

// The folder in a run's folder for the parts of its plan, one of each launcher of several hosts.
inline constexpr auto kPlanParts = "plans";
inline constexpr auto kPlanPart = "part-";  // how the names of its files begin

// The absolute path of a run's folder. A link as `runs/latest` is followed now, since the next run
// changes it. Throws: io, when there is no current folder.
std::string resolve_run_folder(const std::string& path);

// Makes the folder, and points `latest` to it (link_latest), whose name of before goes to
// `latest_before`. Returns whether it is new. Throws: io;
// failed_precondition, of another user's folder (folder_owner.h).
bool make_run_folder(const std::string& run_dir, std::string* latest_before = nullptr);

// Points the link `latest` to `run_dir`, where that is a folder in `runs/` of the current one and
// the run is part of no other (MUSTER_RUN_DIR). The link is replaced in one step, and a file or
// folder of that name is left alone. A link that cannot be made is no error. Returns what it named
// before; empty: nothing.
std::string link_latest(const std::string& run_dir);

// Before an output goes to the file of a flag. Throws: invalid_argument if that is a file of the
// run in `run_dir`, or one below its folders.
void check_not_of_run(const char* flag, const std::string& path, const std::string& run_dir);

// Whether the folder has a file of this name and nothing else.
bool holds_only(const std::string& folder, const std::string& name);

// Whether remove_unused_run_folder() may be of use, for all that can be seen now: somebody else may
// write there.
bool may_be_unused(const std::string& run_dir);

// Removes a folder in `runs/` that holds nothing, or what the launcher itself writes alone;
// `latest` then points to the run before: the folder `latest_before` if that is there, else to the
// one that changed last.
void remove_unused_run_folder(const std::string& run_dir, const std::string& latest_before = "");

}  // namespace muster
