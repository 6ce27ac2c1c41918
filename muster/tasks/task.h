// A task: one command to run on some of the machine's devices, and what became of it. Values that every part
// of muster/tasks passes on: the spec file and the sweep make tasks, the schedule decides which may start,
// the runner starts them, the journal and the results tell of them. No I/O here.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/rank_env.h"

namespace muster {

// One thing that will do for a task: so many devices of one host. A task has one or several of these, the
// earlier the better.
struct TaskNeed {
  double gpus = 0;            // a whole number, or a fraction below 1 of one GPU; 0: none
  uint64_t memory_bytes = 0;  // free on each of these GPUs, and kept free of other tasks; 0: not told
  std::string model = {};     // a piece of the GPU's model; empty: any
  int cpus = 0;               // cores; 0: not counted
  bool without_gpus = false;  // will do only where tasks have no GPUs at all: not when these are merely busy
  bool operator==(const TaskNeed&) const = default;
};

// Those of the alternatives that count: on machines with GPUs to use none that is for others.
std::vector<TaskNeed> needs_here(std::vector<TaskNeed> needs, bool has_gpus);

// Whether a GPU of that model will do for the need.
bool is_model(const std::string& model, const TaskNeed& need);

// Where in a spec file something stands, from 1; 0: it came from the command line.
struct SpecPosition {
  int line = 0;
  int column = 0;
  bool operator==(const SpecPosition&) const = default;
};

// Where a spec says which devices a task gets; line 0: it does not say so with that key.
struct NeedPlaces {
  SpecPosition needs = {};
  SpecPosition on = {};
  SpecPosition ranks = {};
  bool operator==(const NeedPlaces&) const = default;
};

struct Task {
  std::string name = {};  // unique in its set
  std::vector<std::string> argv = {};
  Environment environment = {};               // beside the runner's own, over which it wins
  std::string directory = {};                 // where it runs; empty: where the runner does
  std::vector<TaskNeed> needs = {};           // alternatives; never empty
  std::string on = {};                        // `--gpus` text that its GPUs must be of; empty: any
  int ranks = 1;                              // more: a job of so many ranks, with the launcher's environment
  std::vector<std::string> after = {};        // names of tasks that must have ended well before
  int priority = 0;                           // higher starts earlier
  int retries = 0;                            // starts after a failure, beside the first
  std::chrono::milliseconds back_off{1'000};  // before the first of those; doubled each time
  std::optional<std::chrono::milliseconds> time_limit = {};  // of each start
  std::map<std::string, std::string> parameters = {};  // what `each` or --sweep made it of: "lr" → "0.1"
  SpecPosition at = {};
  NeedPlaces places = {};
  bool operator==(const Task&) const = default;
};

enum class TaskState {
  waiting,  // for devices, or for a task it is after
  running,
  done,
  failed,   // its last start failed and none is left
  skipped,  // a task it is after failed, or the run was ended before it could start
};

// "waiting", "running", "done", "failed", "skipped".
const char* to_string(TaskState state);

// Times are seconds since the run began, and go on where they stopped when a run is resumed.
struct TaskAttempt {
  int attempt = 0;  // MUSTER_ATTEMPT
  std::string host = {};
  std::vector<std::string> devices = {};  // "GPU-…", "MIG-…"; empty: CPU
  std::vector<int> gpu_indices = {};      // the same, as nvidia-smi counts
  double gpu_fraction = 1;                // of each
  std::vector<int> cpus = {};             // it was kept on; empty: not bound
  double began = 0;
  std::optional<double> ended = {};
  int exit_code = 0;  // when signal == 0
  int signal = 0;
  bool timed_out = false;
  // With its host; or the run was killed meanwhile, and `ended` is the last that is known. How it ended is
  // not known.
  bool lost = false;
  std::string log = {};  // path of its standard output and error
  bool operator==(const TaskAttempt&) const = default;
};

struct TaskResult {
  TaskState state = TaskState::waiting;
  std::vector<TaskAttempt> attempts = {};
  std::string last_json = {};  // the last line of its standard output that is a JSON object; empty: none
  std::string reason = {};     // of failed and skipped: "exit code 3", "after prepare, which failed"
  bool operator==(const TaskResult&) const = default;
};

}  // namespace muster
