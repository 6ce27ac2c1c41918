// Files are written when a run has ended, each as a whole. They hold what the journal has.
#include "muster/tasks/report/result_files.h"

#include <utility>

#include "muster/launch/run_folder.h"
#include "muster/tasks/report/results.h"
#include "muster/tasks/report/timeline.h"

namespace muster {

// A run of hours is not to end with a file that cannot be written, nor with one over another.
void check_result_files(const ResultFiles& files, const std::string& run_dir) {
  for (const auto& [flag, path] :
       {std::pair("--csv", files.csv), std::pair("--html", files.html)}) {
    if (path.empty())
      continue;
    check_named_file(flag, path);
    check_not_read(flag, path, files.read);
    if (!run_dir.empty())
      check_not_of_run(flag, path, run_dir);
  }
  if (!files.csv.empty() && !files.html.empty() && is_same_file(files.csv, files.html))
    refuse_named("--html", kWritableFile, files.html, "--csv names it too");
}

void write_result_files(const ResultFiles& files,
                        const Tasks& tasks,
                        const TaskResults& results,
                        const Inventory& inventory,
                        const std::string& title) {
  if (!files.csv.empty())
    write_named_file(files.csv, results_csv(tasks, results));
  if (!files.html.empty())
    write_named_file(files.html, timeline_html(tasks, results, inventory, title));
}

}  // namespace muster
