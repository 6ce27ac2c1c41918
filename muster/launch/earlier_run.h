// What a folder has before a start of a job, which would write there: an earlier start has left it,
// and it makes way; or somebody else's files, which nobody moves or replaces. For JobSetup, and for
// launchers before they wait for anything.
#pragma once

#include <string>

namespace muster {

// Throws: invalid_argument naming what the run's folder has of a run of tasks, or has under a name
// of the run's own files without an earlier run's sign. `given_plan`: the file of --plan, which is
// taken as it is.
void check_run_folder(const std::string& run_dir, const std::string& given_plan);

// The same of a folder for logs alone.
void check_log_folder(const std::string& log_dir);

// The folders of attempts in `log_dir`, which an earlier start of a job has left there, go into
// `earlier-<n>` beside them. Throws: io.
void move_earlier_logs(const std::string& log_dir);

// Removes the parts of plans that launchers have left which were killed. A program's own files in a
// folder of that name stay.
void remove_earlier_parts(const std::string& run_dir);

// Of several hosts, only the first writes a plan.json, so that of an earlier start would stay at
// the others. The file of --plan stays.
void remove_earlier_plan(const std::string& path, const std::string& given_plan);

}  // namespace muster
