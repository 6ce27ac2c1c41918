// The files of a folder tell which kind of run it holds. A file that is missing or damaged is told
// on the page; only a folder without any of them is an error.
#include "muster/report/report.h"

#include "muster/base/error.h"
#include "muster/base/folders.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/report/pages.h"
#include "muster/report/rank_work.h"
#include "muster/tasks/journal/task_file.h"
#include "muster/trace/compare_activity.h"

namespace muster {
namespace {

[[noreturn]] void refuse_folder(const std::string& folder, const std::string& got) {
  throw invalid_argument("expected the folder of a run, got '",
                         printable(folder),
                         "', ",
                         got,
                         "; runs are in runs/, as runs/latest");
}

// Throws: invalid_argument for a path that is no folder.
void check_folder_of_run(const std::string& folder) {
  if (!path_exists(folder))
    refuse_folder(folder, "which is not there");
  if (!is_folder(folder))
    refuse_folder(folder, "which is no folder");
}

}  // namespace

// A run of tasks is known by its tasks.json, and a job by any of its files.
RunReport make_report(const std::string& folder) {
  check_folder_of_run(folder);
  if (path_exists(task_file_path(folder))) {
    const TasksReport run = read_tasks_report(folder);
    return {tasks_page(run), tasks_report_json(run)};
  }
  if (!is_job_run(folder))
    refuse_folder(folder, "which has no plan.json, run.json, tasks.json or metrics.jsonl");
  const JobRun run = read_job_run(folder);
  return {job_page(run), job_report_json(run)};
}

// Only the ranks' own files are read, so it works while the job runs.
std::string ranks_report(const std::string& folder) {
  check_folder_of_run(folder);
  if (!is_job_run(folder))
    refuse_folder(folder, "which is no job's");
  Strings problems;
  const ActivityViews ranks = read_ranks(folder, problems);
  if (ranks.empty()) {
    throw failed_precondition("--ranks: expected activity files of ranks in '",
                              printable(folder),
                              "/activity', got ",
                              problems.empty() ? "none" : problems.front(),
                              "; programs of muster::run write them");
  }
  std::string text;
  text += sum_of<std::string>(compare_activity(ranks),
                              [](const Divergence& found) { return found.text() + "\n"; });
  text += sum_of<std::string>(
      problems, [&](const auto& problem) { return cat("left out: ", problem, "\n"); });
  return text_or(text, cat("the collectives of ", plural(ranks.size(), "rank"), " agree\n"));
}

}  // namespace muster
