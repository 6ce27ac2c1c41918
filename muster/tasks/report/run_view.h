// The runner tells a view how the run goes on: the live table and the plain lines are made of it
// (live_table.h), and tests look on by it.
#pragma once

#include <string>

#include "muster/base/lists.h"
#include "muster/base/no_copy.h"
#include "muster/tasks/schedule/schedule.h"

namespace muster {

class RunView : NoCopy {
 public:
  RunView() = default;
  virtual ~RunView() = default;

  virtual void started(size_t task, const TaskAttempt& attempt) = 0;
  // `result` with the attempt that has ended; its state says what follows.
  virtual void ended(size_t task, const TaskResult& result) = 0;
  // The start never began: another job had a GPU of it, or, `starved`, there were no processes,
  // descriptors or memory.
  virtual void refused(size_t task, const TaskResult& result, bool starved) = 0;
  // All that never start, for one reason.
  virtual void skipped(const Indices& tasks, const std::string& reason) = 0;
  // A line for people: what is being waited for, why the run ends.
  virtual void note(const std::string& text) = 0;
  // Between events, and at least as often as a table wants to be drawn.
  virtual void tick(const TaskSchedule& schedule, double now) = 0;
};

}  // namespace muster
