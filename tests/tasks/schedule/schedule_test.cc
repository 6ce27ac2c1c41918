#include "muster/tasks/schedule/schedule.h"

#include <gmock/gmock.h>

#include <random>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/tasks/schedule/explain.h"
#include "muster/tasks/spec/spec.h"
#include "tests/tasks/schedule/machines.h"
#include "tests/tasks/schedule/simulate.h"

namespace muster::tasks_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const TaskNeed kOneGpu{.gpus = 1};

std::vector<std::string> started_names(const std::vector<Task>& tasks,
                                       const std::vector<TaskStart>& starts) {
  std::vector<std::string> names;
  for (const TaskStart& start : starts)
    names.push_back(tasks[start.task].name);
  return names;
}

TEST(TaskSchedule, TakesTheHighestPriorityThenTheLongestWayThenTheOrder) {
  std::vector<Task> tasks = {task_of("plain", {kOneGpu}),
                             task_of("first of three", {kOneGpu}),
                             task_of("second", {kOneGpu}, {"first of three"}),
                             task_of("third", {kOneGpu}, {"second"}),
                             task_of("urgent", {kOneGpu})};
  tasks[4].priority = 1;
  TaskSchedule schedule(tasks, pool_of(1));
  for (const char* const expected : {"urgent", "first of three", "second", "plain", "third"}) {
    const auto starts = schedule.start(0);
    ASSERT_THAT(started_names(tasks, starts), ElementsAre(expected));
    EXPECT_TRUE(schedule.start(0).empty()) << "one GPU";
    schedule.done(starts[0].task);
  }
  EXPECT_TRUE(schedule.finished());
}

TEST(TaskSchedule, TakesALaterAlternativeOnlyWhenTheEarlierCannotBeHad) {
  const std::vector<Task> tasks = {task_of("a", {kOneGpu, {.cpus = 4}}),
                                   task_of("b", {kOneGpu, {.cpus = 4}}),
                                   task_of("c", {kOneGpu, {.cpus = 4}})};
  TaskSchedule schedule(tasks, pool_of(1, 4));
  const auto starts = schedule.start(0);
  ASSERT_EQ(starts.size(), 2U);
  EXPECT_EQ(starts[0].alternative, 0U);
  EXPECT_EQ(starts[1].alternative, 1U);
  EXPECT_THAT(explain(schedule, 2, 1),
              testing::AllOf(HasSubstr("c waits for devices"),
                             HasSubstr("GPU 0 has a"),
                             HasSubstr("0 of 4 CPUs of box are free, b has the others")));
  schedule.done(0);
  EXPECT_EQ(schedule.start(1).at(0).alternative, 0U);
}

DevicePool hosts_a_and_b(std::vector<int> slots = {}) {
  return DevicePool(
      {.source = "test", .simulated = true, .hosts = {host_with(0, 4, "a"), host_with(0, 4, "b")}},
      {.slots = std::move(slots)});
}

std::vector<int> hosts_of(const std::vector<TaskStart>& starts) {
  std::vector<int> hosts;
  for (const TaskStart& start : starts)
    hosts.push_back(start.where.host);
  return hosts;
}

TEST(TaskSchedule, AHostRunsAsManyTasksAsItHasSlots) {
  std::vector<Task> tasks;
  for (int i = 0; i < 6; ++i)
    tasks.push_back(task_of(cat("t", i), {{.cpus = 1}}));
  TaskSchedule schedule(tasks, hosts_a_and_b({1, 2}));
  EXPECT_THAT(hosts_of(schedule.start(0)), ElementsAre(0, 1, 1));
  EXPECT_THAT(explain(schedule, 5, 0), HasSubstr("host b runs as many tasks as it may"));
  schedule.done(1);
  EXPECT_THAT(hosts_of(schedule.start(1)), ElementsAre(1));
}

TEST(TaskSchedule, NothingStartsOnAHostThatWasLost) {
  std::vector<Task> tasks;
  for (int i = 0; i < 12; ++i)
    tasks.push_back(task_of(cat("t", i), {{.cpus = 1}}));
  TaskSchedule schedule(tasks, hosts_a_and_b());
  EXPECT_EQ(schedule.start(0).size(), 8U);
  schedule.set_aside(0);
  schedule.again(0);
  schedule.again(1);
  EXPECT_TRUE(schedule.start(1).empty());
  schedule.done(4);
  EXPECT_THAT(hosts_of(schedule.start(2)), ElementsAre(1));
  EXPECT_THAT(explain(schedule, 11, 2), HasSubstr("host a was lost"));
}

TEST(TaskSchedule, SeveralGpusAreTakenWhereTheirLinksAreFastest) {
  Host slow = host_with(2, 8, "slow");
  slow.gpu_links[0][1] = slow.gpu_links[1][0] = {LinkKind::nvlink, 1};
  const std::vector<Task> tasks = {task_of("two", {{.gpus = 2}}),
                                   task_of("more", {{.gpus = 2}}),
                                   task_of("last", {{.gpus = 2}})};
  TaskSchedule schedule(
      tasks,
      DevicePool({.source = "test", .simulated = true, .hosts = {slow, host_with(4, 8, "fast")}}));
  EXPECT_THAT(hosts_of(schedule.start(0)), ElementsAre(1, 1, 0)) << "the fullest host comes second";
}

TEST(TaskSchedule, AHostThatIsBackIsUsedAgain) {
  std::vector<Task> tasks;
  for (int i = 0; i < 12; ++i)
    tasks.push_back(task_of(cat("t", i), {{.cpus = 1}}));
  TaskSchedule schedule(tasks, hosts_a_and_b({4, 4}));
  EXPECT_EQ(schedule.start(0).size(), 8U);
  schedule.set_aside(0);
  for (const size_t lost : {0U, 1U, 2U, 3U})
    schedule.again(lost);
  EXPECT_TRUE(schedule.start(1).empty());
  schedule.bring_back(0);
  EXPECT_THAT(hosts_of(schedule.start(2)), ElementsAre(0, 0, 0, 0))
      << "all that it had, and no more";
  EXPECT_THAT(explain(schedule, 11, 2), testing::Not(HasSubstr("was lost")));
}

TEST(TaskSchedule, WithoutNeedsATaskWaitsForAGpuWhereThereAreSome) {
  const std::vector<Task> tasks = {task_of("a", default_needs(1)), task_of("b", default_needs(1))};
  TaskSchedule with_gpu(tasks, pool_of(1, 4));
  const auto first = with_gpu.start(0);
  ASSERT_THAT(started_names(tasks, first), ElementsAre("a"));
  EXPECT_EQ(first[0].where.gpus.size(), 1U);
  with_gpu.done(0);
  EXPECT_EQ(with_gpu.start(1).at(0).where.gpus.size(), 1U);
  TaskSchedule without(tasks, pool_of(0, 4));
  EXPECT_THAT(started_names(tasks, without.start(0)), ElementsAre("a", "b"));
}

TEST(TaskSchedule, SharesOfAGpuAndMemoryArePacked) {
  const std::vector<Task> tasks = {
      task_of("half", {{.gpus = 0.5, .memory_bytes = kGpuBytes / 2}}),
      task_of("quarter", {{.gpus = 0.25}}),
      task_of("most memory", {{.gpus = 0.1, .memory_bytes = kGpuBytes / 4 * 3}}),
      task_of("whole", {kOneGpu})};
  TaskSchedule schedule(tasks, pool_of(3));
  std::map<std::string, std::vector<int>> gpus;
  for (const TaskStart& start : schedule.start(0))
    gpus[tasks[start.task].name] = start.where.gpus;
  ASSERT_EQ(gpus.size(), 4U);
  EXPECT_EQ(gpus["half"], gpus["quarter"]);
  EXPECT_NE(gpus["half"], gpus["most memory"]) << "its memory does not fit beside";
  EXPECT_NE(gpus["whole"], gpus["half"]);
  EXPECT_NE(gpus["whole"], gpus["most memory"]);
}

TEST(TaskSchedule, SeveralGpusAreTheBestLinkedOnes) {
  const std::vector<Task> tasks = {task_of("one", {kOneGpu}), task_of("two", {{.gpus = 2}})};
  TaskSchedule schedule(tasks, pool_of(4));
  const auto starts = schedule.start(0);
  ASSERT_THAT(started_names(tasks, starts), ElementsAre("two", "one"));
  EXPECT_EQ(starts[0].where.gpus[0] / 2, starts[0].where.gpus[1] / 2) << "a pair with fast links";
}

TEST(TaskSchedule, ExplicitDevicesAreTheOnlyOnesTaken) {
  std::vector<Task> tasks = {task_of("on two", {kOneGpu}), task_of("on two as well", {kOneGpu})};
  tasks[0].on = tasks[1].on = "2";
  TaskSchedule schedule(tasks, pool_of(4));
  const auto starts = schedule.start(0);
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_THAT(starts[0].where.gpus, ElementsAre(2));
  EXPECT_THAT(explain(schedule, 1, 0),
              testing::AllOf(HasSubstr("GPU 0 not among those"), HasSubstr("GPU 2 has on two")));
}

// Small tasks keep coming; without devices being reserved for it the big one would wait for all of
// them.
TEST(TaskSchedule, ABigTaskIsNotStarvedBySmallOnes) {
  std::vector<Task> tasks = {task_of("small 0", {kOneGpu}),
                             task_of("small 1", {kOneGpu}),
                             task_of("big", {{.gpus = 2}}, {"small 0"})};
  std::vector<double> durations = {1, 1.5, 1};
  for (int i = 2; i < 40; ++i) {
    tasks.push_back(task_of(cat("small ", i), {kOneGpu}));
    durations.push_back(i % 2 == 0 ? 1 : 1.5);
  }
  tasks[2].priority = 1;
  const SimulatedRun run = simulate(tasks, pool_of(2), {.durations = durations});
  const auto big = std::find_if(run.starts.begin(),
                                run.starts.end(),
                                [](const SimulatedStart& start) { return start.task == 2; });
  EXPECT_LE(big->began, 4);
}

TEST(TaskSchedule, AFailureIsTriedAgainAfterABackOffThatDoubles) {
  std::vector<Task> tasks = {task_of("flaky", {kOneGpu}),
                             task_of("next", {kOneGpu}, {"flaky"}),
                             task_of("after next", {kOneGpu}, {"next"}),
                             task_of("other", {kOneGpu})};
  tasks[0].retries = 2;
  tasks[0].back_off = std::chrono::milliseconds(500);
  TaskSchedule schedule(tasks, pool_of(4));
  EXPECT_EQ(schedule.start(0).size(), 2U);
  EXPECT_EQ(schedule.failed(0, 10).at, 10.5);
  EXPECT_TRUE(schedule.start(10.4).empty());
  EXPECT_THAT(explain(schedule, 0, 10.1), HasSubstr("failed 1 time and starts again in 400ms"));
  EXPECT_THAT(explain(schedule, 1, 10.1), HasSubstr("next waits for flaky (waiting)"));
  EXPECT_EQ(schedule.next_time(), 10.5);
  EXPECT_EQ(schedule.start(10.5).size(), 1U);
  EXPECT_EQ(schedule.failed(0, 20).at, 21);
  EXPECT_EQ(schedule.start(21).size(), 1U);
  const TaskRetry end = schedule.failed(0, 30);
  EXPECT_FALSE(end.at);
  EXPECT_THAT(end.skipped, ElementsAre(1, 2));
  EXPECT_EQ(schedule.state(2), TaskState::skipped);
  EXPECT_FALSE(schedule.finished());
  schedule.done(3);
  EXPECT_TRUE(schedule.finished());
}

TEST(TaskSchedule, WhatStopsSoonStartsAgainAfterAPauseThatGrows) {
  std::vector<Task> tasks = {task_of("a", {{.cpus = 1}}), task_of("b", {{.cpus = 1}}, {"a"})};
  SimulateOptions options;
  options.stops[0] = {1, 1, 1, 60, 59, 0, 0, 0, 0, 0, 0, 0};
  const SimulatedRun run = simulate(tasks, pool_of(0, 1), options);
  std::vector<double> pauses;
  for (size_t i = 1; i + 1 < run.starts.size(); ++i)
    pauses.push_back(run.starts[i].began - run.starts[i - 1].ended);
  EXPECT_THAT(pauses, ElementsAre(1, 2, 4, 0, 1, 2, 4, 8, 16, 32, 60, 60));
  EXPECT_TRUE(run.starts[11].stopped);
  EXPECT_FALSE(run.starts[12].stopped);
  EXPECT_EQ(run.starts.back().task, 1U) << "a is done and did not fail, though it has no retries";
}

// What has ended has given back what another lacked. A task that starves again and again keeps its
// minute.
TEST(TaskSchedule, AnEndLetsOneThatHasStarvedTryAgain) {
  const std::vector<Task> tasks = {task_of("a", {{.cpus = 1}}), task_of("b", {{.cpus = 1}})};
  TaskSchedule schedule(tasks, pool_of(0, 2));
  schedule.end_pause_of_starved();
  ASSERT_EQ(schedule.start(0).size(), 2U);
  schedule.starved(0, 0);
  schedule.starved(1, 0);
  EXPECT_TRUE(schedule.start(0.1).empty());
  schedule.end_pause_of_starved();
  EXPECT_THAT(started_names(tasks, schedule.start(0.1)), ElementsAre("a"));
  EXPECT_THAT(started_names(tasks, schedule.start(1)), ElementsAre("b")) << "its pause is over";
  schedule.end_pause_of_starved();
  EXPECT_TRUE(schedule.start(1).empty()) << "both run";
  double now = 1;
  for (int tries = 2; tries < 7; ++tries) {
    schedule.starved(0, now);
    now = schedule.next_time().value();
    ASSERT_THAT(started_names(tasks, schedule.start(now)), ElementsAre("a"));
  }
  schedule.starved(0, now);
  schedule.end_pause_of_starved();
  EXPECT_TRUE(schedule.start(now).empty());
  EXPECT_EQ(schedule.next_time().value(), now + 60);
}

TEST(TaskSchedule, ATaskThatHasStoppedIsExplained) {
  const std::vector<Task> tasks = {task_of("a", {{.cpus = 1}})};
  TaskSchedule schedule(tasks, pool_of(0, 1));
  ASSERT_EQ(schedule.start(0).size(), 1U);
  EXPECT_EQ(schedule.stopped(0, 3, 3), 4);
  EXPECT_THAT(explain(schedule, 0, 3), HasSubstr("a stopped (exit code 75) and starts again in 1"));
  EXPECT_TRUE(schedule.start(3.5).empty());
  EXPECT_EQ(schedule.start(4).size(), 1U);
  EXPECT_EQ(schedule.failures(0), 0);

  TaskSchedule other(tasks, pool_of(0, 1));
  other.restore({{.task = 0, .stops = 2, .stopped_at = 10}}, 11);
  EXPECT_EQ(other.next_time(), 12);
}

TEST(TaskSchedule, AGpuThatAnotherJobHoldsIsPassedOverAndNamed) {
  const std::vector<Task> tasks = {task_of("a", {kOneGpu}), task_of("b", {kOneGpu})};
  TaskSchedule schedule(tasks, pool_of(2));
  schedule.set_leased(0, 1, 300, "held by job 4f2a");
  EXPECT_EQ(schedule.start(0).size(), 1U);
  EXPECT_THAT(explain(schedule, 1, 0),
              testing::AllOf(HasSubstr("GPU 0 has a"), HasSubstr("GPU 1 is held by job 4f2a")));
  schedule.set_leased(0, 1, 0, "");
  EXPECT_EQ(schedule.start(0).size(), 1U);
}

TEST(TaskSchedule, MemoryThatOtherProgramsUseIsWaitedFor) {
  Host host = host_with(2);
  for (Gpu& gpu : host.gpus)
    gpu.memory_free_bytes = kGpuBytes / 4;
  const std::vector<Task> tasks = {task_of("large", {{.gpus = 1, .memory_bytes = kGpuBytes / 2}}),
                                   task_of("small", {{.gpus = 1, .memory_bytes = kGpuBytes / 8}})};
  TaskSchedule schedule(tasks, DevicePool({.source = "test", .hosts = {host}}));
  EXPECT_THAT(started_names(tasks, schedule.start(0)), ElementsAre("small"))
      << "nothing is reserved from it";
  EXPECT_TRUE(schedule.waits_for_memory());
  EXPECT_TRUE(schedule.waits_for_gpus());
  EXPECT_TRUE(schedule.waits_for_memory_of(0, 1));
  schedule.set_memory_in_use(0, 0, 0);
  schedule.set_memory_in_use(0, 1, 0);
  EXPECT_THAT(started_names(tasks, schedule.start(1)), ElementsAre("large"));
  EXPECT_FALSE(schedule.waits_for_memory());
  EXPECT_FALSE(schedule.waits_for_gpus());
}

// Where others compute, a task comes last: alone, as a part of a GPU, with several, and by host.
TEST(TaskSchedule, GpusThatOtherProgramsUseComeLast) {
  Host host = host_with(4);
  host.gpus[0].memory_free_bytes = kGpuBytes / 2;
  Host busy = host_with(1, 8, "busy");
  busy.gpus[0].memory_free_bytes = kGpuBytes / 2;
  const Inventory inventory{.source = "test", .hosts = {busy, host}};
  const auto gpus_for = [&](double gpus, size_t count) {
    const std::vector<Task> tasks(count, task_of("t", {{.gpus = gpus}}));
    std::vector<std::string> chosen;
    TaskSchedule schedule(tasks, DevicePool(inventory));
    for (const TaskStart& start : schedule.start(0))
      chosen.push_back(cat(start.where.host, ": ", join(start.where.gpus, " ")));
    return chosen;
  };
  EXPECT_THAT(gpus_for(1, 5), ElementsAre("1: 1", "1: 2", "1: 3", "0: 0", "1: 0"));
  EXPECT_THAT(gpus_for(0.5, 2), ElementsAre("1: 1", "1: 1"));
  EXPECT_THAT(gpus_for(2, 1), ElementsAre("1: 2 3"));
}

// As on every real GPU, where the driver has some memory for itself.
TEST(TaskSchedule, ALittleMemoryInUseIsInNobodysWay) {
  Host host = host_with(2);
  for (Gpu& gpu : host.gpus)
    gpu.memory_free_bytes = kGpuBytes - (kGpuBytes >> 6);
  std::vector<Task> tasks = {task_of("other", {{.gpus = 1}}),
                             task_of("waits", {{.gpus = 1, .memory_bytes = kGpuBytes / 2}})};
  for (Task& task : tasks)
    task.on = "0";
  TaskSchedule schedule(tasks, DevicePool({.source = "test", .hosts = {host}}));
  EXPECT_THAT(started_names(tasks, schedule.start(0)), ElementsAre("other"));
  EXPECT_TRUE(schedule.waits_for_memory());
  EXPECT_FALSE(schedule.waits_for_memory_of(0, 0));
  schedule.set_memory_in_use(0, 1, kGpuBytes);
  EXPECT_FALSE(schedule.waits_for_memory_of(0, 1)) << "nobody waits for this GPU";
}

TEST(TaskSchedule, WhatCannotBeIsAnErrorBeforeAnythingStarts) {
  const auto fails_with = [](const std::vector<Task>& tasks, const std::string& text) {
    try {
      const TaskSchedule schedule(tasks, pool_of(2));
      ADD_FAILURE() << "no error; expected " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  fails_with({task_of("a", {{.gpus = 3}})}, "got 3 GPUs (2 GPUs to use, 8 CPUs)");
  fails_with({task_of("a", {{.cpus = 9}})}, "9 CPUs");
  fails_with({task_of("a", {kOneGpu}, {"b"})}, "got 'b'");
  fails_with({task_of("a", {kOneGpu}, {"b"}), task_of("b", {kOneGpu}, {"a"})}, "cycle");
}

TEST(TaskSchedule, WhatIsDoneAlreadyIsNotStarted) {
  const std::vector<Task> tasks = {
      task_of("a", {kOneGpu}), task_of("b", {kOneGpu}, {"a"}), task_of("c", {kOneGpu})};
  TaskSchedule schedule(tasks, pool_of(2), {.done = {0}});
  EXPECT_THAT(started_names(tasks, schedule.start(0)), ElementsAre("b", "c"));
}

// Of a run that goes on elsewhere: what runs has its devices and comes before nothing, and pauses
// last as there.
TEST(TaskSchedule, StandsWhereAnotherRunDoes) {
  std::vector<Task> tasks = {task_of("runs", {kOneGpu}),
                             task_of("pauses", {kOneGpu}),
                             task_of("bad", {kOneGpu}),
                             task_of("after bad", {kOneGpu}, {"bad"}),
                             task_of("waits", {kOneGpu}),
                             task_of("done", {kOneGpu})};
  tasks[1].retries = 3;
  tasks[1].back_off = std::chrono::milliseconds(10'000);
  const auto at = [&](double now, int gpus) {
    TaskSchedule schedule(tasks, pool_of(gpus), {.done = {5}});
    const Allocation where = schedule.pool().find(kOneGpu).value();
    schedule.restore({{.task = 0, .state = TaskState::running, .where = where, .began = 1},
                      {.task = 1, .failures = 2, .failed_at = 30},
                      {.task = 2, .state = TaskState::failed, .failures = 1, .failed_at = 5},
                      {.task = 3, .state = TaskState::skipped},
                      {.task = 5, .state = TaskState::done}},
                     now);
    return schedule;
  };
  EXPECT_THAT(explain(at(40, 1), 1, 40),
              HasSubstr("pauses failed 2 times and starts again in 10.0s"));
  const std::string why = explain(at(40, 1), 4, 40);
  EXPECT_THAT(why, HasSubstr("GPU 0 has runs"));
  EXPECT_THAT(why, testing::Not(HasSubstr("before it")));
  EXPECT_THAT(started_names(tasks, at(40, 4).start(40)), ElementsAre("waits"));
  EXPECT_THAT(started_names(tasks, at(51, 4).start(51)), ElementsAre("pauses", "waits"));
  EXPECT_EQ(at(40, 1).count(TaskState::failed), 1U);
  EXPECT_EQ(at(40, 1).count(TaskState::done), 1U);
}

}  // namespace
}  // namespace muster::tasks_test
