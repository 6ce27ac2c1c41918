// The files that a run's results go to. For the run's spine, before anything starts and when all
// has ended.
#pragma once

#include <string>
#include <vector>

#include "muster/base/named_file.h"
#include "muster/device/inventory.h"
#include "muster/tasks/task.h"

namespace muster {

// Absolute paths; empty: not asked for.
struct ResultFiles {
  std::string csv{};             // results_csv
  std::string html{};            // timeline_html
  std::vector<ReadFile> read{};  // files of the command line that they must not replace
};

// Whether they can be written, and are neither each other, nor read, nor of the run in `run_dir`
// (empty: its folder gets a new name); what is there stays as it is. Throws: invalid_argument.
void check_result_files(const ResultFiles& files, const std::string& run_dir);

// Throws: io.
void write_result_files(const ResultFiles& files,
                        const Tasks& tasks,
                        const TaskResults& results,
                        const Inventory& inventory,
                        const std::string& title);

}  // namespace muster
