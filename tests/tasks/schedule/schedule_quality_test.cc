// How good the schedule is, over random sets of tasks on a virtual clock: nothing over its
// capacity, and not much later than the best there is.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "muster/base/strings.h"
#include "tests/tasks/schedule/machines.h"
#include "tests/tasks/schedule/simulate.h"

namespace muster::tasks_test {
namespace {

using Random = std::mt19937;

int between(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

double seconds_between(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

TaskNeed random_need(Random& random) {
  switch (between(random, 0, 4)) {
    case 0:
      return {.gpus = 1.0 * between(random, 1, 4)};
    case 1:
      return {.gpus = 0.05 * between(random, 1, 19),
              .memory_bytes = kGpuBytes / 16 * uint64_t(between(random, 0, 12))};
    case 2:
      return {.cpus = between(random, 1, 8)};
    case 3:
      return {.gpus = 1, .memory_bytes = kGpuBytes / 2, .cpus = between(random, 0, 4)};
    default:
      return {.gpus = 1};
  }
}

std::vector<Task> random_tasks(Random& random, int count) {
  std::vector<Task> tasks;
  for (int i = 0; i < count; ++i) {
    Task task = task_of(cat("t", i), {random_need(random)});
    if (between(random, 0, 2) == 0)
      task.needs.push_back(random_need(random));
    if (i > 0 && between(random, 0, 2) == 0)
      task.after = {cat("t", between(random, 0, i - 1))};
    task.priority = between(random, 0, 3) == 0 ? between(random, -2, 2) : 0;
    tasks.push_back(std::move(task));
  }
  return tasks;
}

// At every start: what runs then, added up.
void expect_within_capacity(const SimulatedRun& run, const DevicePool& pool) {
  for (const SimulatedStart& at : run.starts) {
    std::map<std::pair<int, int>, std::pair<int, uint64_t>> gpus;
    std::map<int, int> cpus;
    for (const SimulatedStart& other : run.starts) {
      if (other.began > at.began || other.ended <= at.began)
        continue;
      cpus[other.where.host] += other.where.cpus;
      for (const int gpu : other.where.gpus) {
        auto& [units, memory] = gpus[{other.where.host, gpu}];
        units += other.where.units;
        memory += other.where.memory_bytes;
      }
    }
    for (const auto& [gpu, used] : gpus) {
      ASSERT_LE(used.first, kWholeGpu);
      ASSERT_LE(used.second, kGpuBytes);
    }
    for (const auto& [host, used] : cpus)
      ASSERT_LE(used, pool.hosts()[static_cast<size_t>(host)].cpus);
  }
}

TEST(ScheduleQuality, NoDeviceIsOverItsCapacityAtAnyMoment) {
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    const Inventory machines{
        .source = "test",
        .simulated = true,
        .hosts = {host_with(4, 8, "a"), host_with(between(random, 0, 8), 8, "b")}};
    const std::vector<Task> tasks = random_tasks(random, between(random, 1, 120));
    std::vector<double> durations;
    for (size_t i = 0; i < tasks.size(); ++i)
      durations.push_back(seconds_between(random, 0.1, 5));
    const DevicePool pool(machines);
    const SimulatedRun run = simulate(tasks, pool, {.durations = durations});
    ASSERT_EQ(run.starts.size(), tasks.size()) << "every task starts once";
    expect_within_capacity(run, pool);
    std::vector<const SimulatedStart*> of(tasks.size());
    for (const SimulatedStart& start : run.starts)
      of[start.task] = &start;
    for (size_t i = 0; i < tasks.size(); ++i) {
      for (const std::string& name : tasks[i].after) {
        EXPECT_GE(of[i]->began, of[static_cast<size_t>(std::stoi(name.substr(1)))]->ended);
      }
    }
  }
}

TEST(ScheduleQuality, OfOneGpuTasksTheMakespanIsNearTheLowerBound) {
  Random random(2);
  double sum = 0;
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    const int gpus = between(random, 1, 8);
    const int count = between(random, 10, 100);
    std::vector<Task> tasks;
    std::vector<double> durations;
    std::vector<double> way(static_cast<size_t>(count));
    double work = 0;
    double critical = 0;
    for (int i = 0; i < count; ++i) {
      Task task = task_of(cat("t", i), {{.gpus = 1}});
      durations.push_back(seconds_between(random, 1, 10));
      double before = 0;
      for (int arrows = between(random, 0, 3); arrows > 0 && i > 0; --arrows) {
        const int from = between(random, 0, i - 1);
        if (std::find(task.after.begin(), task.after.end(), cat("t", from)) != task.after.end())
          continue;
        task.after.push_back(cat("t", from));
        before = std::max(before, way[static_cast<size_t>(from)]);
      }
      way[static_cast<size_t>(i)] = before + durations.back();
      critical = std::max(critical, way[static_cast<size_t>(i)]);
      work += durations.back();
      tasks.push_back(std::move(task));
    }
    const SimulatedRun run = simulate(tasks, pool_of(gpus, 64), {.durations = durations});
    sum += run.makespan / std::max(critical, work / gpus);
  }
  RecordProperty("ratio", std::to_string(sum / kRounds));
  std::printf("makespan / max(critical path, work / GPUs): %.4f on average\n", sum / kRounds);
  EXPECT_LE(sum / kRounds, 1.10);
}

// The best makespan of all orders in which tasks can be started as early as they fit (one of them
// is a best schedule, since a schedule can be shifted to the left).
class BruteForce {
 public:
  BruteForce(const std::vector<Task>& tasks, const std::vector<double>& durations, int gpus)
      : tasks_(tasks), durations_(durations), gpus_(gpus), end_(tasks.size(), 0) {}

  double best() {
    place(0, 0);
    return best_;
  }

 private:
  void place(unsigned placed, double makespan) {
    if (makespan >= best_)
      return;
    if (placed + 1 == 1U << tasks_.size()) {
      best_ = makespan;
      return;
    }
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if ((placed >> i & 1) != 0)
        continue;
      double from = 0;
      bool ready = true;
      for (const std::string& name : tasks_[i].after) {
        const auto before = static_cast<size_t>(std::stoi(name.substr(1)));
        ready &= (placed >> before & 1) != 0;
        from = std::max(from, end_[before]);
      }
      if (!ready)
        continue;
      const double began = earliest(placed, i, from);
      runs_.push_back({began, began + durations_[i], tasks_[i].needs[0].gpus});
      end_[i] = began + durations_[i];
      place(placed | 1U << i, std::max(makespan, end_[i]));
      runs_.pop_back();
    }
  }

  struct Run {
    double began;
    double ended;
    double gpus;
  };

  // The earliest time from `from` at which there is room for all of the task's time.
  double earliest(unsigned /*placed*/, size_t task, double from) const {
    std::vector<double> times = {from};
    for (const Run& run : runs_) {
      if (run.ended > from)
        times.push_back(run.ended);
    }
    std::sort(times.begin(), times.end());
    for (const double time : times) {
      if (fits(time, time + durations_[task], tasks_[task].needs[0].gpus))
        return time;
    }
    return times.back();
  }

  bool fits(double began, double ended, double gpus) const {
    std::vector<double> moments = {began};
    for (const Run& run : runs_) {
      if (run.began > began && run.began < ended)
        moments.push_back(run.began);
    }
    return std::all_of(moments.begin(), moments.end(), [&](double moment) {
      double used = gpus;
      for (const Run& run : runs_) {
        if (run.began <= moment && run.ended > moment)
          used += run.gpus;
      }
      return used <= gpus_;
    });
  }

  const std::vector<Task>& tasks_;
  const std::vector<double>& durations_;
  double gpus_;
  std::vector<Run> runs_;
  std::vector<double> end_;
  double best_ = 1e9;
};

TEST(ScheduleQuality, OfTasksOfSeveralGpusTheMakespanIsNearTheBest) {
  Random random(3);
  double sum = 0;
  double worst = 0;
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    const int gpus = between(random, 2, 8);
    const int count = between(random, 2, 8);
    std::vector<Task> tasks;
    std::vector<double> durations;
    for (int i = 0; i < count; ++i) {
      Task task = task_of(cat("t", i), {{.gpus = 1.0 * between(random, 1, gpus)}});
      if (i > 0 && between(random, 0, 2) == 0)
        task.after = {cat("t", between(random, 0, i - 1))};
      tasks.push_back(std::move(task));
      durations.push_back(seconds_between(random, 1, 10));
    }
    const SimulatedRun run = simulate(tasks, pool_of(gpus, 64), {.durations = durations});
    const double ratio = run.makespan / BruteForce(tasks, durations, gpus).best();
    ASSERT_GE(ratio, 1 - 1e-9);
    sum += ratio;
    worst = std::max(worst, ratio);
  }
  std::printf("makespan / brute force: %.4f on average, %.4f at worst\n", sum / kRounds, worst);
  EXPECT_LE(sum / kRounds, 1.15);
}

TEST(ScheduleQuality, AHundredThousandTasksAreScheduledInNoTime) {
  Random random(4);
  std::vector<Task> tasks;
  for (int i = 0; i < 100'000; ++i) {
    Task task = task_of(cat("t", i), {{.gpus = i % 3 == 0 ? 0.5 : 1.0, .cpus = i % 5}});
    if (i >= 1000)
      task.after = {cat("t", i - 1000)};
    tasks.push_back(std::move(task));
  }
  const SimulatedRun run = simulate(tasks, pool_of(8, 64));
  EXPECT_EQ(run.starts.size(), tasks.size());
}

}  // namespace
}  // namespace muster::tasks_test
