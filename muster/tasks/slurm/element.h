// Runs one element of a job array: `muster tasks --exec-element FILE INDEX`, which the batch script
// calls. plan.cc writes the files. A task gets what it would get in `muster tasks` of a machine
// that has what Slurm has given it: placed by the same pool, with the same variables and ranks.
#pragma once

#include <optional>
#include <string>

#include "muster/base/strings.h"
#include "muster/placement/plan.h"
#include "muster/tasks/task.h"

namespace muster {

// The task's line in a file of elements. Throws: invalid_argument when its text is no UTF-8.
std::string element_line(const Task& task,
                         const std::string& run_dir,
                         Visibility visibility = Visibility::job);

struct SlurmElement {
  std::string name{};
  Strings argv{};
  Environment environment{};
  std::string directory{};
  std::string run_dir{};
  int ranks = 1;
  Visibility visibility = Visibility::job;
  // Nothing: it was submitted by a muster that left the devices to Slurm.
  std::optional<TaskNeed> need{};
};

// Throws: io; invalid_argument when the file has no such element.
SlurmElement read_element(const std::string& path, int index);

// Becomes the element's program, in its directory and with its environment. Throws: as
// read_element; unavailable when its needs cannot be met here; SpawnError when it cannot be
// executed, io when its directory cannot be entered.
[[noreturn]] void exec_element(const std::string& path, int index);

}  // namespace muster
