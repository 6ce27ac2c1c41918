// Tasks that wait for devices while others, that come after them, keep coming: on a virtual clock.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "muster/base/strings.h"
#include "muster/tasks/schedule/explain.h"
#include "tests/tasks/schedule/machines.h"
#include "tests/tasks/schedule/simulate.h"

namespace muster::tasks_test {
namespace {

using testing::HasSubstr;

// A set of tasks with the time that each takes, which the schedule does not know.
struct Crowd {
  std::vector<Task> tasks = {};
  std::vector<double> durations = {};

  size_t add(Task task, int priority, double seconds) {
    task.priority = priority;
    tasks.push_back(std::move(task));
    durations.push_back(seconds);
    return tasks.size() - 1;
  }

  // Small ones of unequal times, so that their ends do not meet.
  void add_small(int count, const TaskNeed& need) {
    for (int i = 0; i < count; ++i)
      add(task_of(cat("small ", i), {need}), 0, 1 + 0.013 * (i % 37));
  }

  SimulatedRun run(DevicePool pool) const {
    return simulate(tasks, std::move(pool), {.durations = durations});
  }
};

SimulatedStart start_of(const SimulatedRun& run, size_t task) {
  return *std::find_if(run.starts.begin(), run.starts.end(), [&](const SimulatedStart& start) {
    return start.task == task;
  });
}

// As tasks that are ready when the first second is over.
Task later(Task task) {
  task.after = {"prepare"};
  return task;
}

Task on_gpu(const std::string& gpus, Task task) {
  task.on = gpus;
  return task;
}

const TaskNeed kPreparing{.cpus = 1};

TEST(ScheduleWaiting, TheSecondThatWaitsIsNotPassedByThoseThatComeAfterIt) {
  Crowd crowd;
  crowd.add(task_of("prepare", {kPreparing}), 0, 0.1);
  crowd.add(on_gpu("0", task_of("long", {{.gpus = 1}})), 30, 1'000);
  crowd.add(on_gpu("0", later(task_of("first", {{.gpus = 1}}))), 20, 1);
  const size_t second = crowd.add(later(task_of("second", {{.gpus = 2}})), 10, 1);
  crowd.add_small(160, {.gpus = 1});
  EXPECT_LE(start_of(crowd.run(pool_of(4)), second).began, 1.5)
      << "the ends of what ran when it was ready";
}

TEST(ScheduleWaiting, CpusAreKeptForATaskThatNeedsAGpuToo) {
  Crowd crowd;
  crowd.add(task_of("prepare", {kPreparing}), 0, 0.1);
  const size_t both = crowd.add(later(task_of("both", {{.gpus = 1, .cpus = 8}})), 10, 1);
  crowd.add_small(160, {.cpus = 1});
  EXPECT_LE(start_of(crowd.run(pool_of(1)), both).began, 1.5);
}

TEST(ScheduleWaiting, AWholeGpuIsKeptFromThoseThatTakeAShare) {
  Crowd crowd;
  crowd.add(task_of("prepare", {kPreparing}), 0, 0.1);
  const size_t whole = crowd.add(later(task_of("whole", {{.gpus = 1}})), 10, 1);
  crowd.add_small(160, {.gpus = 0.25});
  EXPECT_LE(start_of(crowd.run(pool_of(2)), whole).began, 1.5);
}

TEST(ScheduleWaiting, WhatIsFreedFirstIsKeptAndNotWhatHasRunForLong) {
  Crowd crowd;
  crowd.add(task_of("prepare", {kPreparing}), 0, 0.1);
  for (int i = 0; i < 4; ++i)
    crowd.add(task_of(cat("long ", i), {{.gpus = 1}}), 30, 1'000);
  const size_t big = crowd.add(later(task_of("big", {{.gpus = 4}})), 10, 1);
  crowd.add_small(160, {.gpus = 1});
  EXPECT_LE(start_of(crowd.run(pool_of(8)), big).began, 1.5);
}

TEST(ScheduleWaiting, WhatATaskCannotUseIsNotKeptForIt) {
  Crowd crowd;
  crowd.add(task_of("long", {{.gpus = 2}}), 30, 100);
  crowd.add(task_of("both", {{.gpus = 2, .cpus = 2}}), 20, 1);
  crowd.add(on_gpu("0-1", task_of("some", {{.gpus = 1}})), 10, 1);
  crowd.add_small(30, {.cpus = 1});
  const SimulatedRun run =
      crowd.run(DevicePool({.source = "test", .simulated = true, .hosts = {host_with(2, 8)}}));
  for (size_t task = 3; task < crowd.tasks.size(); ++task)
    EXPECT_LT(start_of(run, task).began, 12) << "six of the eight CPUs are in nobody's way";
}

// Of several places that would do one is reserved; how many may pass on the others is bounded.
TEST(ScheduleWaiting, TheMorePassATaskTheMorePlacesAreKeptForIt) {
  Crowd crowd;
  crowd.add(task_of("prepare", {kPreparing}), 0, 0.1);
  for (int i = 0; i < 3; ++i)
    crowd.add(on_gpu("a:0-3", task_of(cat("long ", i), {{.gpus = 1}})), 30, 1'000);
  const size_t big = crowd.add(later(task_of("big", {{.gpus = 2}})), 10, 1);
  crowd.add_small(200, {.gpus = 1});
  const DevicePool pool(
      {.source = "test", .simulated = true, .hosts = {host_with(4, 8, "a"), host_with(4, 8, "b")}});
  const SimulatedRun run = crowd.run(pool);
  const double began = start_of(run, big).began;
  const auto passed =
      std::count_if(run.starts.begin(), run.starts.end(), [&](const SimulatedStart& start) {
        return start.began > 0.1 && start.began < began;
      });
  EXPECT_LE(passed, 2 * 2) << "as many as it needs GPUs, for each host";
  EXPECT_LE(began, 4);
}

TEST(ScheduleWaiting, ALaterAlternativeIsKeptWhenTheEarlierTakesLong) {
  Crowd crowd;
  crowd.add(task_of("prepare", {kPreparing}), 0, 0.1);
  crowd.add(task_of("long", {{.gpus = 1}}), 30, 1'000);
  const size_t either = crowd.add(later(task_of("either", {{.gpus = 1}, {.cpus = 6}})), 10, 1);
  crowd.add_small(160, {.cpus = 1});
  EXPECT_LE(start_of(crowd.run(pool_of(1)), either).began, 3);
}

// It takes one of them.
TEST(ScheduleWaiting, OfTwoPlacesOnOneHostTheLargerIsKept) {
  std::vector<Task> tasks = {task_of("runs", {{.gpus = 2}}),
                             task_of("either", {{.gpus = 2, .cpus = 4}, {.gpus = 1, .cpus = 6}})};
  for (int i = 0; i < 16; ++i)
    tasks.push_back(task_of(cat("small ", i), {{.cpus = 1}}));
  tasks[0].priority = 2;
  tasks[1].priority = 1;
  TaskSchedule schedule(tasks, pool_of(2, 16));
  EXPECT_EQ(schedule.start(0).size(), 1 + 10U) << "six CPUs are reserved when two have passed it";
  EXPECT_THAT(explain(schedule, 17, 0), HasSubstr("6 are reserved for either"));
}

TEST(ScheduleWaiting, NothingIsKeptForWhatOnlyAnotherJobsEndCanGive) {
  const std::vector<Task> tasks = {task_of("both", {{.gpus = 2}}), task_of("one", {{.gpus = 1}})};
  TaskSchedule schedule(tasks, pool_of(2));
  schedule.set_leased(0, 0, kWholeGpu, "held by job 4f2a");
  const auto starts = schedule.start(0);
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_EQ(starts[0].task, 1U);
}

TEST(ScheduleWaiting, ExplainsForWhomDevicesAreKept) {
  std::vector<Task> tasks = {task_of("runs", {{.gpus = 1, .cpus = 6}}),
                             task_of("both", {{.gpus = 2}}),
                             task_of("wide", {{.cpus = 8}}),
                             task_of("one", {{.gpus = 1}}),
                             task_of("narrow", {{.cpus = 1}})};
  for (size_t i = 0; i < tasks.size(); ++i)
    tasks[i].priority = -static_cast<int>(i);
  TaskSchedule schedule(tasks, pool_of(2));
  EXPECT_EQ(schedule.start(0).size(), 1U);
  EXPECT_THAT(explain(schedule, 3, 0), HasSubstr("GPU 1 is reserved for both"));
  EXPECT_THAT(
      explain(schedule, 4, 0),
      HasSubstr("2 of 8 CPUs of box are free, runs has the others; 8 are reserved for wide"));
}

// What is reserved costs little of the machine: big tasks that become ready one after the other
// among thousands.
TEST(ScheduleWaiting, ThousandsOfSmallTasksGoOnBesideBigOnes) {
  Crowd crowd;
  crowd.add_small(4'000, {.gpus = 1});
  for (int i = 0; i < 40; ++i) {
    Task big = task_of(cat("big ", i), {{.gpus = 1.0 * (2 + i % 3)}});
    big.after = {cat("small ", 90 * i)};
    crowd.add(std::move(big), 10, 2);
  }
  double work = 0;
  for (size_t i = 0; i < crowd.tasks.size(); ++i)
    work += crowd.durations[i] * crowd.tasks[i].needs[0].gpus;
  const SimulatedRun run = crowd.run(pool_of(8));
  std::printf("makespan / (work / GPUs): %.4f\n", run.makespan / (work / 8));
  EXPECT_LE(run.makespan / (work / 8), 1.05);
}

// The rule itself, over random sets on one machine: while nobody of the same priority or a higher
// one waits beside it, a task starts as soon as it would if none of lower priority had started
// since it was ready and since the last one of at least its priority took devices.
TEST(ScheduleWaiting, NoneOfLowerPriorityDelaysATaskThatWaits) {
  std::mt19937 random(7);
  const auto between = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int judged = 0;
  for (int round = 0; round < 120; ++round) {
    Crowd crowd;
    const int count = between(10, 100);
    for (int i = 0; i < count; ++i) {
      TaskNeed need;
      if (between(0, 3) > 0)
        need.gpus = between(0, 2) == 0 ? 0.25 * between(1, 3) : between(1, 4);
      if (need.gpus > 0 && need.gpus < 1)
        need.memory_bytes = kGpuBytes / 8 * uint64_t(between(0, 5));
      need.cpus = between(0, 1) == 0 ? between(1, 8) : 0;
      Task task = task_of(cat("t", i), {need});
      if (i > 0 && between(0, 1) == 0)
        task.after = {cat("t", between(0, i - 1))};
      crowd.add(
          std::move(task), between(0, 5), std::uniform_real_distribution<double>(0.5, 5)(random));
    }
    const DevicePool pool = pool_of(4, 8);
    const SimulatedRun run = crowd.run(pool);
    std::vector<const SimulatedStart*> start(crowd.tasks.size());
    for (const SimulatedStart& one : run.starts)
      start[one.task] = &one;
    std::vector<double> ready(crowd.tasks.size(), 0);
    for (size_t i = 0; i < crowd.tasks.size(); ++i) {
      for (const std::string& name : crowd.tasks[i].after)
        ready[i] = start[static_cast<size_t>(std::stoi(name.substr(1)))]->ended;
    }
    for (const SimulatedStart& event : run.starts) {
      const double now = event.ended;
      for (size_t i = 0; i < crowd.tasks.size(); ++i) {
        if (ready[i] > now || start[i]->began <= now)
          continue;
        bool alone = true;
        DevicePool without = pool;
        double since = ready[i];
        for (size_t other = 0; other < crowd.tasks.size(); ++other) {
          if (crowd.tasks[other].priority >= crowd.tasks[i].priority && start[other]->began <= now)
            since = std::max(since, start[other]->began);
        }
        for (size_t other = 0; other < crowd.tasks.size(); ++other) {
          const bool lower = crowd.tasks[other].priority < crowd.tasks[i].priority;
          if (other != i && !lower && ready[other] <= now && start[other]->began > now)
            alone = false;
          const bool runs = start[other]->began <= now && start[other]->ended > now;
          if (runs && !(lower && start[other]->began > since))
            without.take(start[other]->where);
        }
        if (!alone)
          continue;
        ++judged;
        EXPECT_FALSE(without.find(crowd.tasks[i].needs[0]))
            << "round " << round << ": " << crowd.tasks[i].name << " waits at " << now << " until "
            << start[i]->began;
      }
    }
  }
  EXPECT_GT(judged, 1'000);
}

}  // namespace
}  // namespace muster::tasks_test
