#include "muster/run/task_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/data/dataset.h"
#include "muster/run/context.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// On a machine of its own: with as many simulated GPUs as a test wants, and two CPU slots.
class TaskSetTest : public ::testing::Test {
 protected:
  void SetUp() override { use_machine(0); }
  void TearDown() override { ::unsetenv("MUSTER_INVENTORY"); }

  static void use_machine(int num_gpus) {
    std::string gpus;
    for (int i = 0; i < num_gpus; ++i) {
      gpus += (i == 0 ? "" : ", ") + std::string(R"({"index": )") + std::to_string(i) +
              R"(, "uuid": "GPU-0000000)" + std::to_string(i) + R"(", "model": "M"})";
    }
    const std::string path =
        ::testing::TempDir() + "muster-task-set-" + std::to_string(::getpid()) + ".json";
    write_file(
        path,
        R"({"schema": "muster.devices/1", "hosts": [{"name": "h", "cpu_slots": 2, "gpus": [)" +
            gpus + "]}]}");
    ::setenv("MUSTER_INVENTORY", path.c_str(), 1);
  }
};

std::string error_of_run(TaskSet& tasks) {
  try {
    tasks.run();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST_F(TaskSetTest, EveryTaskHasItsDeviceAndItsResult) {
  use_machine(2);
  TaskSet tasks;
  const auto sum = tasks.add("sum", {.device = "1"}, [](TaskContext& task) {
    return torch::ones({4}, task.device()).sum().item<double>();
  });
  const auto place = tasks.add("place", {.device = "GPU-00000000"}, [](TaskContext& task) {
    return task.name() + " on " + task.place();
  });
  const auto tensor =
      tasks.add("tensor", {.device = "cpu"}, [](TaskContext&) { return torch::arange(3); });
  const auto nothing = tasks.add("nothing", {}, [](TaskContext&) {});
  tasks.run();
  EXPECT_EQ(sum.result(), 4);
  EXPECT_EQ(place.result(), "place on GPU 0");
  EXPECT_EQ(tensor.result().size(0), 3);
  EXPECT_NO_THROW(nothing.result());
  EXPECT_EQ(tasks.outcomes()[0].place, "GPU 1");
  EXPECT_EQ(tasks.outcomes()[2].place, "CPU slot 0");
  EXPECT_EQ(tasks.outcomes()[2].instead, "") << "it had asked for the CPU";
  for (const TaskOutcome& outcome : tasks.outcomes())
    EXPECT_EQ(outcome.state, TaskOutcome::State::done);
}

TEST_F(TaskSetTest, ATaskMayHaveTheContextOfARank) {
  use_machine(2);
  TaskSet tasks;
  // A sum over all ranks is that of the one; threads have a group each.
  const auto sum_of = [](double value) {
    return [value](Context& ctx) {
      auto sum = torch::full({3}, value, torch::kDouble);
      ctx.process_group().all_reduce(sum);
      return sum.sum().item<double>() + 100 * ctx.gpu().value();
    };
  };
  const auto a = tasks.add("a", {.device = "0"}, sum_of(1));
  const auto b = tasks.add("b", {.device = "1"}, sum_of(2));
  const auto slot = tasks.add("slot", {.device = "cpu"}, [](TaskContext& task) {
    return cat(
        task.context().rank(), " of ", task.context().world_size(), task.gpu() ? " GPU" : "");
  });
  tasks.run();
  EXPECT_EQ(a.result(), 3);
  EXPECT_EQ(b.result(), 106);
  EXPECT_EQ(slot.result(), "0 of 1");
}

TEST_F(TaskSetTest, AStopReachesTheContextOfATask) {
  TaskSet tasks({.fail_fast = true});
  std::barrier both_run(2);
  const auto asked = tasks.add("long", {}, [&](Context& ctx) {
    both_run.arrive_and_wait();
    while (!ctx.stop_requested())
      std::this_thread::yield();
    return ctx.should_stop() && ctx.stops();
  });
  tasks.add("bad", {}, [&](TaskContext&) {
    both_run.arrive_and_wait();
    throw std::runtime_error("broken");
  });
  EXPECT_THAT(error_of_run(tasks), HasSubstr("broken"));
  EXPECT_TRUE(asked.result());
}

// As in a job: the rest of the epoch is not lost.
TEST_F(TaskSetTest, AnEpochThatATaskLeavesAsItStopsIsGoneOnWith) {
  TaskSet tasks({.fail_fast = true});
  std::barrier both_run(2);
  const auto left = tasks.add("long", {}, [&](Context& ctx) {
    auto loader =
        ctx.loader(TensorDataset(torch::arange(12), torch::arange(12)), {.batch_size = 2});
    both_run.arrive_and_wait();
    for (const auto& batch : loader) {
      while (!ctx.stop_requested())
        std::this_thread::yield();
      if (batch.size() == 2 && ctx.should_stop())
        break;
    }
    return cat(loader.position().epoch, " ", loader.position().consumed);
  });
  tasks.add("bad", {}, [&](TaskContext&) {
    both_run.arrive_and_wait();
    throw std::runtime_error("broken");
  });
  EXPECT_THAT(error_of_run(tasks), HasSubstr("broken"));
  EXPECT_EQ(left.result(), "0 2");
}

TEST_F(TaskSetTest, AFunctionNeedNotBeCopyableAndTheHandleOutlivesTheSet) {
  auto handle = [] {
    TaskSet tasks;
    auto added =
        tasks.add("one", {}, [box = std::make_unique<int>(7)](TaskContext&) { return *box; });
    tasks.run();
    return added;
  }();
  EXPECT_EQ(handle.result(), 7);
}

TEST_F(TaskSetTest, TasksThatFailAreAllNamedAndTheOthersGoOn) {
  TaskSet tasks;
  const auto a =
      tasks.add("a", {}, [](TaskContext&) -> int { throw std::runtime_error("the disk is full"); });
  const auto b =
      tasks.add("b", {}, [](TaskContext&) -> int { throw std::out_of_range("no such row"); });
  const auto c = tasks.add("c", {}, [](TaskContext&) { return 3; });
  const std::string message = error_of_run(tasks);
  EXPECT_THAT(message, HasSubstr("got 2 that failed"));
  EXPECT_THAT(message, HasSubstr("task 'a' on CPU slot 0: "));
  EXPECT_THAT(message, HasSubstr("the disk is full"));
  EXPECT_THAT(message, HasSubstr("task 'b' on CPU slot 1: "));
  EXPECT_THAT(message, HasSubstr("no such row"));
  EXPECT_THAT(message, Not(HasSubstr("task 'c'")));
  EXPECT_THROW(a.result(), std::runtime_error);
  EXPECT_THROW(b.result(), std::out_of_range) << "the function's own exception";
  EXPECT_EQ(c.result(), 3);
}

TEST_F(TaskSetTest, OneDeviceRunsItsTasksOneAtATimeInOrder) {
  use_machine(2);
  TaskSet tasks;
  std::atomic<int> at_once = 0, most = 0;
  std::vector<std::string>
      order;  // the device guards it: that is what is tested, also by the thread sanitizer
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    tasks.add(name, {.device = "1"}, [&](TaskContext& task) {
      most = std::max(most.load(), ++at_once);
      torch::rand({64, 64}).matmul(torch::rand({64, 64}));
      order.push_back(task.name());
      --at_once;
    });
  }
  tasks.run();
  EXPECT_EQ(most, 1);
  EXPECT_THAT(order, ElementsAre("a", "b", "c", "d", "e"));
}

// Each waits for the other, so this ends only when both run at once.
void expect_to_meet(TaskSet& tasks, const TaskOptions& first, const TaskOptions& second) {
  std::barrier meeting(2);
  tasks.add("a", first, [&](TaskContext&) { meeting.arrive_and_wait(); });
  tasks.add("b", second, [&](TaskContext&) { meeting.arrive_and_wait(); });
  EXPECT_NO_THROW(tasks.run());
}

TEST_F(TaskSetTest, DifferentDevicesRunAtOnce) {
  {
    TaskSet slots;
    expect_to_meet(slots, {.device = "cpu"}, {.device = "cpu"});
  }
  use_machine(2);
  TaskSet gpus;
  expect_to_meet(gpus, {.device = "0"}, {.device = "1"});
  TaskSet any;
  expect_to_meet(any, {}, {});
  EXPECT_EQ(any.outcomes()[1].place, "GPU 1") << "the first is taken";
  TaskSet shared({.per_device = 2});
  expect_to_meet(shared, {.device = "1"}, {.device = "1"});
}

TEST_F(TaskSetTest, AWaitingTaskDoesNotHoldUpAnotherDevices) {
  use_machine(2);
  TaskSet tasks;
  std::barrier meeting(2);
  tasks.add("a", {.device = "0"}, [&](TaskContext&) { meeting.arrive_and_wait(); });
  const auto late = tasks.add("late", {.device = "0"}, [&](TaskContext&) { return 1; });
  tasks.add("b", {.device = "1"}, [&](TaskContext&) { meeting.arrive_and_wait(); });
  tasks.run();
  EXPECT_EQ(late.result(), 1);
}

TEST_F(TaskSetTest, FailFastAsksTheOthersToStopAndStartsNothingMore) {
  TaskSet tasks({.fail_fast = true, .cpu_slots = 2});
  std::barrier both_run(2);
  tasks.add("bad", {}, [&](TaskContext&) {
    both_run.arrive_and_wait();
    throw std::runtime_error("broken");
  });
  const auto asked = tasks.add("long", {}, [&](TaskContext& task) {
    EXPECT_FALSE(task.stop_requested());
    both_run.arrive_and_wait();
    while (!task.stop_requested())
      std::this_thread::yield();
    return true;
  });
  const auto never = tasks.add("never", {}, [](TaskContext&) { return 1; });
  EXPECT_THAT(error_of_run(tasks), HasSubstr("not started: never"));
  EXPECT_TRUE(asked.result());
  EXPECT_THROW(never.result(), Error);
  EXPECT_EQ(tasks.outcomes()[2].state, TaskOutcome::State::not_started);
}

TEST_F(TaskSetTest, AWrongDeviceIsAnErrorBeforeAnythingStarts) {
  use_machine(2);
  for (const std::string device : {"7", "GPU-ffff", "other:0", "model=H100"}) {
    TaskSet tasks;
    std::atomic<bool> started = false;
    tasks.add("good", {.device = "0"}, [&](TaskContext&) { started = true; });
    tasks.add("bad", {.device = device}, [&](TaskContext&) { started = true; });
    const std::string message = error_of_run(tasks);
    EXPECT_THAT(message, HasSubstr("task 'bad': "));
    EXPECT_THAT(message, HasSubstr(device));
    EXPECT_THAT(message, HasSubstr("GPUs 0, 1")) << "what there is";
    EXPECT_FALSE(started);
  }
}

TEST_F(TaskSetTest, WithoutTheDeviceTheCpuWhereAllowed) {
  use_machine(1);
  TaskSet tasks;
  const auto device = tasks.add("b", {.device = "1", .allow_cpu = true}, [](TaskContext& task) {
    return task.device().str();
  });
  const auto has =
      tasks.add("a", {.device = "0", .allow_cpu = true}, [](TaskContext&) { return 1; });
  ::testing::internal::CaptureStderr();
  tasks.run();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("on the CPU: task 'b': device '1'"));
  EXPECT_EQ(device.result(), "cpu");
  EXPECT_EQ(tasks.outcomes()[0].place, "CPU slot 0");
  EXPECT_THAT(tasks.outcomes()[0].instead, HasSubstr("1"));
  EXPECT_EQ(tasks.outcomes()[1].place, "GPU 0");
  EXPECT_EQ(tasks.outcomes()[1].instead, "");

  TaskSet unreadable;  // wrong on every machine, so it is no missing device
  unreadable.add("c", {.device = "GPU 1", .allow_cpu = true}, [](TaskContext&) {});
  EXPECT_THAT(error_of_run(unreadable),
              HasSubstr("task 'c': device 'GPU 1': expected an index (3)"));
}

TEST_F(TaskSetTest, NamesAreUniqueAndASetRunsOnce) {
  TaskSet tasks;
  const auto a = tasks.add("a", {}, [](TaskContext& task) { return task.seed(10); });
  EXPECT_THROW(tasks.add("a", {}, [](TaskContext&) {}), Error);
  EXPECT_THROW(tasks.add("", {}, [](TaskContext&) {}), Error);
  const auto b = tasks.add("b", {}, [](TaskContext& task) { return task.seed(10); });
  EXPECT_THROW(a.result(), Error) << "it has not run";
  tasks.run();
  EXPECT_EQ(a.result(), 10U);
  EXPECT_EQ(b.result(), 11U);
  EXPECT_THROW(tasks.run(), Error);
  EXPECT_THROW(tasks.add("c", {}, [](TaskContext&) {}), Error);
}

TEST_F(TaskSetTest, AProcessNeedsTheProgramsArguments) {
  TaskSet tasks;
  try {
    tasks.add<TaskMode::process>("a", {}, [](TaskContext&) { return 1; });
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("TaskSet(argc, argv)"));
  }
}

// Of a set with a task that would start and a group of these ranks.
std::string error_with_group(const TaskGroupOptions& options) {
  char program[] = "program";
  char* argv[] = {program, nullptr};
  TaskSet tasks(1, argv);
  std::atomic<bool> started = false;
  tasks.add("good", {}, [&](TaskContext&) { started = true; });
  std::string error;
  try {
    tasks.add_group("bad", options, [](Context&) {});
    error = error_of_run(tasks);
  } catch (const Error& refused) {
    error = refused.message();
  }
  EXPECT_FALSE(started);
  return error;
}

TEST_F(TaskSetTest, AGroupThatDoesNotFitIsAnErrorBeforeAnythingStarts) {
  use_machine(2);
  EXPECT_THAT(error_with_group({.ranks = 0}),
              HasSubstr("task 'bad': expected 1 rank or more, got 0"));
  EXPECT_THAT(
      error_with_group({.ranks = 3}),
      HasSubstr(
          "task 'bad': expected a GPU for each of 3 ranks, got 2; host h has GPUs 0, 1; ask for "
          "fewer ranks"));
  EXPECT_THAT(error_with_group({.ranks = 2, .devices = "1"}),
              HasSubstr("expected a GPU for each of 2 ranks, got 1 by '1'"));
  EXPECT_THAT(error_with_group({.ranks = 2, .devices = "1,7"}), HasSubstr("'1,7'"));
  EXPECT_THAT(error_with_group({.ranks = 3, .devices = "cpu"}),
              HasSubstr("expected at most 2 ranks, one a CPU slot, got 3; ask for fewer, or raise "
                        "TaskSetOptions::cpu_slots"));
  EXPECT_THAT(error_with_group({.ranks = 3, .allow_cpu = true}),
              HasSubstr("got 3 (on the CPU: expected a GPU for each of 3 ranks, got 2"));
  TaskSet without_arguments;
  EXPECT_THROW(without_arguments.add_group("a", {}, [](Context&) {}), Error);
}

TEST_F(TaskSetTest, TasksShareTheIntraOpThreadsAndGiveThemBack) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  TaskSet tasks;
  std::barrier meeting(2);
  const auto count = [&](TaskContext&) {
    meeting.arrive_and_wait();
    return at::get_num_threads();
  };
  const auto a = tasks.add("a", {}, count);
  const auto b = tasks.add("b", {}, count);
  tasks.run();
  EXPECT_EQ(a.result(), 2);
  EXPECT_EQ(b.result(), 2);
  EXPECT_EQ(at::get_num_threads(), 4);
  int of_new_thread = 0;
  std::thread([&] { of_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(of_new_thread, 4);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace muster::testing
