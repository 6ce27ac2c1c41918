// Runs the tasks of a TaskSet as their devices become free, each in its own thread. For
// task_set.cc; the devices that a task may have are decided before.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/run/task_child.h"
#include "muster/run/task_plan.h"
#include "muster/run/task_set.h"

namespace muster {

class TaskDispatch {
 public:
  // `outcomes` has one entry per task, in order. All arguments must outlive this object.
  TaskDispatch(const detail::TaskEntries& tasks,
               const TaskPlan& plan,
               std::vector<TaskOutcome>& outcomes);

  // `argv`: of this program, for tasks that are processes or groups.
  // Blocking: until every task has ended, or may no longer start.
  void run(const TaskSetOptions& options, const Strings& argv);

 private:
  void start_what_fits(std::vector<std::jthread>& threads);
  Indices free_devices(size_t task, const IndexSet& kept) const;
  void run_task(size_t task, const Indices& devices);
  void call_task(size_t task, const Indices& devices);
  void call_in_thread(size_t task, const TaskDevice& place, const RankPlan& assignment);
  TaskChild child_for(size_t task, const Indices& devices) const;
  int threads_of_each() const;

  const detail::TaskEntries& tasks_;
  const TaskPlan& plan_;
  const std::vector<TaskDevice>& devices_;
  std::vector<TaskOutcome>& outcomes_;  // under mutex_, as are load_ and running_
  TaskSetOptions options_;
  Strings argv_;
  SharedStop stop_;
  int num_threads_ = 1;  // intra-op threads of each task

  std::mutex mutex_;
  std::condition_variable ended_;
  Ints load_;  // tasks on each device
  size_t running_ = 0;
};

}  // namespace muster
