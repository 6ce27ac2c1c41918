// Ranks as processes of one ProcessSet: starts them with their streams, and tells what is known of their
// ends. A rank may be started again in place of one that has ended. For run_workers alone.
#pragma once

#include <optional>
#include <vector>

#include "muster/launch/worker_exit.h"
#include "muster/launch/worker_spec.h"
#include "muster/supervise/input.h"
#include "muster/supervise/output.h"
#include "muster/supervise/process_set.h"

namespace muster {

// Makes the folder of these ranks' logs, and removes what an earlier run's ranks have reported there, as a
// run may go on in the same folder. Throws: io.
void make_log_folder(const std::vector<WorkerSpec>& specs);

class WorkerStarts {
 public:
  WorkerStarts(ProcessSet& processes, Output& output, Input& input, std::vector<int> inherit_fds)
      : processes_(processes), output_(output), input_(input), inherit_fds_(std::move(inherit_fds)) {}

  // Rank 0 gets the launcher's standard input. Throws: SpawnError, io.
  void start(const WorkerSpec& spec);

  // Of how the rank ended, without what it said last: its streams may hold more of it.
  WorkerExit in_short(const ChildExit& end) const;
  // With its last lines.
  WorkerExit explained(const ChildExit& end) const;

 private:
  struct Started {
    WorkerSpec spec;
    std::optional<Output::StreamId> err;
    pid_t pid = -1;
    Clock::time_point at;
  };
  const Started& start_of(const ChildExit& end) const;

  ProcessSet& processes_;
  Output& output_;
  Input& input_;
  std::vector<int> inherit_fds_;
  std::vector<Started> started_;
};

}  // namespace muster
