// A task: one command to run on some of the machine's devices, and its outcome. All parts of
// muster/tasks pass these values on: the spec file and the sweep make tasks, the schedule decides
// which may start, the runner starts them, the journal and the results report them. No I/O here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/lists.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"

namespace muster {

// The bounds of needs: larger numbers are slips rather than wishes.
inline constexpr int kMaxTaskGpus = 4096;
inline constexpr int kMaxTaskCpus = 65'536;
inline constexpr double kLeastGpuShare = 0.001;  // leases count in thousandths of a GPU

// One set of resources on which a task can run: a number of devices of one host. A task has one or
// more alternatives, in order of preference.
struct TaskNeed {
  double gpus = 0;  // an integer, or a fraction below 1 of one GPU; 0: none
  uint64_t memory_bytes =
      0;                // free on each of these GPUs, and kept free of other tasks; 0: not given
  std::string model{};  // a substring of the GPU's model; empty: any
  int cpus = 0;         // of Linux (hardware threads); 0: not counted
  bool without_gpus =
      false;  // applies only if tasks have no GPUs at all, not if these are merely busy
  // NOLINTNEXTLINE(modernize-use-nullptr): it takes <=> for one
  auto operator<=>(const TaskNeed&) const = default;
};

using TaskNeeds = std::vector<TaskNeed>;

// The alternatives that apply here: on machines with GPUs, those marked without_gpus are left out.
TaskNeeds needs_here(TaskNeeds needs, bool has_gpus);

// Whether a GPU of this model meets the need.
bool is_model(const std::string& model, const TaskNeed& need);

// The variables that muster sets for each task, whatever a spec says; those of its GPUs and of its
// ranks come to them.
inline constexpr std::string_view kVariablesOfTask[] = {"MUSTER_MARK",
                                                        "MUSTER_TASK",
                                                        "MUSTER_ATTEMPT",
                                                        "MUSTER_RUN_DIR",
                                                        "MUSTER_TASK_DIR",
                                                        "MUSTER_DEVICE",
                                                        "MUSTER_LEASE_FD"};

// A position in a spec file, from 1; 0: from the command line.
struct SpecPosition {
  int line = 0;
  int column = 0;
  bool operator==(const SpecPosition&) const = default;
};

// The positions at which a spec gives a task's devices; line 0: that key is absent.
struct NeedPlaces {
  SpecPosition needs{};
  SpecPosition on{};
  SpecPosition ranks{};
  bool operator==(const NeedPlaces&) const = default;
};

struct Task {
  std::string name{};  // unique in its set
  Strings argv{};
  Environment environment{};      // overrides the runner's own environment
  std::string directory{};        // where it runs; empty: the runner's directory
  TaskNeeds needs{};              // alternatives; never empty
  std::string on{};               // `--gpus` text that its GPUs must match; empty: any
  int ranks = 1;                  // more: a job of this many ranks, with the launcher's environment
  Strings after{};                // names of tasks that must have succeeded before
  int priority = 0;               // higher starts earlier
  int retries = 0;                // starts after a failure, in addition to the first
  milliseconds back_off{1'000};   // before the first retry; doubled each time
  OptionalDuration time_limit{};  // of each start
  StringMap parameters = {};      // its values from `each` or --sweep: "lr" → "0.1"
  SpecPosition at{};
  NeedPlaces places{};
  bool operator==(const Task&) const = default;
};

using Tasks = std::vector<Task>;

enum class TaskState {
  waiting,  // for devices, or for a task that it comes after
  running,
  done,
  failed,   // its last start failed, without retries left
  skipped,  // a task that it comes after failed, or the run ended before it could start
};

// "waiting", "running", "done", "failed", "skipped".
const char* to_string(TaskState state);

// Times are seconds since the start of the run; a resumed run continues the count.
struct TaskAttempt {
  int attempt = 0;  // MUSTER_ATTEMPT
  std::string host{};
  Strings devices{};        // "GPU-…", "MIG-…"; empty: CPU
  Ints gpu_indices{};       // the same by nvidia-smi's numbering
  double gpu_fraction = 1;  // of each
  Ints cpus{};              // CPUs it was bound to; empty: not bound
  double began = 0;
  std::optional<double> ended{};
  int exit_code = 0;  // when signal == 0
  int signal = 0;
  bool timed_out = false;
  // Its host was lost, or the run was killed meanwhile; how it ended is unknown, and `ended` is the
  // last known time.
  bool lost = false;
  std::string log{};  // path of its standard output and error
  bool operator==(const TaskAttempt&) const = default;
};

// Whether it ended with exit code 75: it was asked to stop, has saved, and asks to be started
// again.
bool has_stopped(const TaskAttempt& attempt);

struct TaskResult {
  TaskState state = TaskState::waiting;
  std::vector<TaskAttempt> attempts{};
  std::string last_json =
      {};                // the last line of its standard output that is a JSON object; empty: none
  std::string reason{};  // if failed or skipped: "exit code 3", "after prepare, which failed"
  bool operator==(const TaskResult&) const = default;
};

using TaskResults = std::vector<TaskResult>;

}  // namespace muster
