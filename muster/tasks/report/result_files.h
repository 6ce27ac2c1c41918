// The files that a run's results go to. For the run's spine, before anything starts and when all
// has ended.
#pragma once

#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/tasks/task.h"

namespace muster {

// Absolute paths; empty: not asked for.
struct ResultFiles {
  std::string csv = {};   // results_csv
  std::string html = {};  // timeline_html
};

// Whether they can be written, and are neither each other nor `spec`, the file of the tasks (empty:
// none); what is there stays as it is. Throws: invalid_argument.
void check_result_files(const ResultFiles& files, const std::string& spec);

// Throws: io.
void write_result_files(const ResultFiles& files,
                        const std::vector<Task>& tasks,
                        const std::vector<TaskResult>& results,
                        const Inventory& inventory,
                        const std::string& title);

}  // namespace muster
