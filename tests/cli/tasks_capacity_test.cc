// `muster tasks` by the real program, over random sets of tasks: what its journal says that ran at
// any moment fits into the machine.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>

#include "muster/base/strings.h"
#include "muster/device/read_inventory.h"
#include "muster/tasks/journal/journal.h"
#include "muster/tasks/journal/read.h"
#include "muster/tasks/journal/task_file.h"
#include "muster_program.h"

namespace muster {
namespace {

constexpr int kNumTasks = 100;
constexpr int kNumCores = 6;
constexpr double kRounding = 1e-9;

class RandomSpec {
 public:
  explicit RandomSpec(unsigned seed) : random_(seed) {}

  std::string text() {
    std::string spec;
    for (int i = 0; i < kNumTasks; ++i) {
      spec +=
          cat("[[task]]\nname = \"t", i, "\"\nargv = [\"sleep\", \"0.0", between(0, 2), "\"]\n");
      spec += cat("needs = [", need(), between(0, 2) == 0 ? cat(", ", need()) : "", "]\n");
      if (between(0, 3) == 0)
        spec += cat("priority = ", between(-2, 2), "\n");
      if (i > 0 && between(0, 3) == 0)
        spec += cat("after = [\"t", between(0, i - 1), "\"]\n");
    }
    return spec;
  }

 private:
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  std::string need() {
    switch (between(0, 4)) {
      case 0:
        return cat("{ gpus = ", between(1, 4), " }");
      case 1:
        return cat("{ gpus = 0.", between(1, 9), ", memory = \"", between(1, 30), "GiB\" }");
      case 2:
        return cat("{ cpus = ", between(1, kNumCores), " }");
      case 3:
        return cat("{ gpus = 1, memory = \"20GiB\", cpus = ", between(1, 4), " }");
      default:
        return cat("{ gpus = 0.", between(1, 5), " }");
    }
  }

  std::mt19937 random_;
};

// What has been taken at a moment.
struct TakenThen {
  std::map<std::string, double> fractions = {};  // by the GPU's id
  std::map<std::string, uint64_t> memory = {};
  int cpus = 0;
  int num_tasks = 0;
};

TakenThen taken_at(double moment, const JournalState& state) {
  TakenThen taken;
  for (size_t i = 0; i < state.results.size(); ++i) {
    const TaskAttempt& attempt = state.results[i].attempts.back();
    if (attempt.began > moment || *attempt.ended <= moment)
      continue;
    ++taken.num_tasks;
    taken.cpus += state.taken[i].cpus;
    for (const std::string& device : attempt.devices) {
      taken.fractions[device] += attempt.gpu_fraction;
      taken.memory[device] += state.taken[i].memory_bytes;
    }
  }
  return taken;
}

// That what the journal tells is what the tasks have asked for.
void expect_a_need_was_met(const Task& task, const TaskAttempt& attempt, const TakenShare& taken) {
  const bool met = std::any_of(task.needs.begin(), task.needs.end(), [&](const TaskNeed& need) {
    const double gpus = attempt.gpu_fraction * static_cast<double>(attempt.devices.size());
    return std::abs(gpus - need.gpus) < kRounding && taken.memory_bytes >= need.memory_bytes &&
           taken.cpus >= need.cpus;
  });
  EXPECT_TRUE(met) << task.name;
}

class TasksCapacity : public testing::Test {
 protected:
  JournalState run(unsigned seed) {
    folder_.write("s.toml", RandomSpec(seed).text());
    folder_.write(
        "box.toml",
        cat("[[host]]\nname = \"box\"\ngpus = \"4xA100-40GB\"\ncores = ", kNumCores, "\n"));
    const Inventory box = read_inventory(folder_.path() + "/box.toml");
    for (const Gpu& gpu : box.hosts.at(0).gpus)
      capacity_[gpu.uuid.value] = gpu.memory_total_bytes;
    const std::string run_dir = cat(folder_.path(), "/run-", seed);
    const Ran ran =
        muster({"tasks", "s.toml", "-q", "--inventory", "box.toml", "--run-dir", run_dir}, folder_);
    EXPECT_EQ(ran.code, 0) << ran.err;
    tasks_ = task_file_of(read_file(task_file_path(run_dir)), run_dir).tasks;
    return read_journal(run_dir, tasks_);
  }

  const ScratchFolder folder_;
  std::map<std::string, uint64_t> capacity_;
  std::vector<Task> tasks_;
};

TEST_F(TasksCapacity, NothingIsOverItsCapacityAtAnyMomentOfARealRun) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    const JournalState state = run(seed);
    std::map<std::string, double> ended;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      ASSERT_EQ(state.results[i].state, TaskState::done);
      ASSERT_EQ(state.results[i].attempts.size(), 1U);
      ended[tasks_[i].name] = *state.results[i].attempts[0].ended;
    }
    int most_tasks = 0;
    int most_cpus = 0;
    double most_of_a_shared_gpu = 0;
    for (size_t i = 0; i < tasks_.size(); ++i) {  // what is taken grows at starts alone
      const TaskAttempt& attempt = state.results[i].attempts[0];
      expect_a_need_was_met(tasks_[i], attempt, state.taken[i]);
      for (const std::string& name : tasks_[i].after)
        EXPECT_GE(attempt.began, ended.at(name));
      const TakenThen taken = taken_at(attempt.began, state);
      EXPECT_LE(taken.cpus, kNumCores) << "as " << tasks_[i].name << " began";
      for (const auto& [device, fraction] : taken.fractions) {
        EXPECT_LE(fraction, 1 + kRounding) << device << " as " << tasks_[i].name << " began";
        EXPECT_LE(taken.memory.at(device), capacity_.at(device));
        if (attempt.gpu_fraction < 1)
          most_of_a_shared_gpu = std::max(most_of_a_shared_gpu, fraction);
      }
      most_tasks = std::max(most_tasks, taken.num_tasks);
      most_cpus = std::max(most_cpus, taken.cpus);
    }
    // It was full, so that one more would have been too much.
    EXPECT_GT(most_tasks, 4);
    EXPECT_EQ(most_cpus, kNumCores);
    EXPECT_GT(most_of_a_shared_gpu, 0.8);
  }
}

}  // namespace
}  // namespace muster
