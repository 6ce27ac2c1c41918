// Reads a run's journal, for whoever goes on with the run or looks on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/strings.h"
#include "muster/tasks/journal/journal.h"
#include "muster/tasks/task.h"

namespace muster {

// Starts of a task that failed in one run.
struct TaskFailures {
  int count = 0;
  double last = 0;  // when the last of them ended
};

// Starts of a task that stopped with exit code 75, one after the other, each soon after it began.
struct TaskStops {
  int count = 0;
  double last = 0;  // when the last of them ended
};

// The state of a run by its journal.
struct JournalState {
  JournalHead head{};                    // of the first run
  Strings marks{};                       // MUSTER_MARK of all that all runs started
  TaskResults results{};                 // by the place among the tasks
  std::vector<TakenShare> taken{};       // by each task's last attempt
  std::vector<TaskFailures> failures{};  // of each task, in the last run
  std::vector<TaskStops> stops{};        // likewise
  double seconds = 0;                    // that the runs took until the last record
  double began = 0;                      // the last run, in these seconds
  double began_wall = 0;                 // and by the clock of that host, in seconds since 1970
  uint64_t good_bytes = 0;               // of the file; what follows is damaged
  std::string last_sum{};                // of the last record in these
  std::string cut{};                     // says what was left out at the end; empty: nothing
};

// The state of a run without records.
JournalState blank_state(size_t num_tasks);

// Reads the journal of a run folder, whether a run goes on there or not. A last line that is not
// whole is left out and said. Throws: io; failed_precondition naming the line that is damaged, does
// not follow the one before it, or does not fit the tasks.
JournalState read_journal(const std::string& run_dir, const Tasks& tasks);

// The same for a journal's bytes; `path` is named in errors.
JournalState journal_from(std::string_view bytes, const std::string& path, const Tasks& tasks);

// For when the run that had started them was killed: every attempt that has no end is lost, and had
// one with the journal's last record; its task waits again.
void end_lost_attempts(JournalState& state);

// The present of a run that goes on, in its own seconds; `wall` is seconds since 1970. Never before
// what the journal has, whatever clocks say.
double present_of(const JournalState& state, double wall);

}  // namespace muster
