// Runs tasks by the schedule: has each started on its devices, watches it, tries it again, ends it,
// and leaves nothing behind, whatever becomes of it or of the runner itself. What was started and
// what came of it is in the journal before anything follows from it. Called by `muster tasks`.
#pragma once

#include <string>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/tasks/hosts/remote_host.h"
#include "muster/tasks/hosts/task_process.h"
#include "muster/tasks/journal/journal.h"
#include "muster/tasks/report/run_view.h"
#include "muster/tasks/schedule/schedule.h"

namespace muster {

struct RunnerOptions {
  TaskRunFacts facts{};
  std::string run_id{};
  bool allow_nan = false;  // a result that is no finite number is no failure
  bool fail_fast = false;  // the first task that fails ends the run
  // For GPUs of other jobs (nothing: ever), for lost hosts and for processes or descriptors (a
  // minute), when nothing runs.
  OptionalDuration wait{};
  OptionalDuration time_limit{};  // of the whole run
  double began = 0;               // on the journal's clock: what earlier runs took
  // Connections by the pool's hosts. They must outlive the run. Null is this machine, which is the
  // only one where nothing is told. A host that was lost and is back has a new connection here.
  RemoteHosts* remote = nullptr;
  Strings earlier{};  // MUSTER_MARK of the runs before
};

struct RunOutcome {
  TaskResults results{};
  int stopped_by = 0;      // the signal that ended the run
  bool timed_out = false;  // its time limit did
  std::string error{};     // what kept it from going on; empty: nothing
};

// `results` are those of earlier runs. Blocking: until all has ended. Throws: io, before anything
// is started.
RunOutcome run_tasks(const Tasks& tasks,
                     TaskSchedule& schedule,
                     Journal& journal,
                     TaskResults results,
                     const RunnerOptions& options,
                     RunView& view);

}  // namespace muster
