#include "muster/tasks/run.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/device/inventory_json.h"
#include "tests/device/scratch.h"
#include "tests/tasks/schedule/machines.h"

namespace muster {
namespace {

using testing::HasSubstr;

TasksOptions two_tasks(const ScratchFolder& folder) {
  const Inventory box{.source = "test", .simulated = true, .hosts = {tasks_test::host_with(2)}};
  TasksOptions options{.sweep = SweepOptions{.sweeps = {"lr=1,2"}, .command = {"./train", "{lr}"}}};
  options.settings.inventory = folder.write("box.json", inventory_to_json(box));
  options.dry_run = true;
  return options;
}

std::string said_by(const TasksOptions& options) {
  testing::internal::CaptureStdout();
  try {
    EXPECT_EQ(tasks::run(options), 0);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return testing::internal::GetCapturedStdout();
}

TEST(TasksRun, SaysWhatWouldStartFirst) {
  const ScratchFolder folder;
  const std::string text = said_by(two_tasks(folder));
  EXPECT_THAT(text, HasSubstr("lr=1"));
  EXPECT_THAT(text, HasSubstr("GPU 1"));
  EXPECT_THAT(text, HasSubstr("of 2 tasks these start first; 0 wait\n"));
}

TEST(TasksRun, CountsOfOneAreSingular) {
  const ScratchFolder folder;
  TasksOptions options = two_tasks(folder);
  options.sweep->sweeps = {"lr=1"};
  EXPECT_THAT(said_by(options), HasSubstr("of 1 task this one starts first; 0 wait\n"));
}

TEST(TasksRun, AsksNoMachineWhereAnInventoryIsTold) {
  const ScratchFolder folder;
  TasksOptions options = two_tasks(folder);
  options.find_machines = [](const TasksSettings&) -> std::vector<TaskMachine> {
    ADD_FAILURE() << "asked";
    return {};
  };
  options.settings.gpus = Selection("1");
  EXPECT_THAT(said_by(options), HasSubstr("of 2 tasks this one starts first; 1 waits\n"));
}

TEST(TasksRun, ExplainsATaskByItsName) {
  const ScratchFolder folder;
  TasksOptions options = two_tasks(folder);
  options.explain = "lr=2";
  EXPECT_THAT(said_by(options), HasSubstr("lr=2 would start first, on GPU 1 of box\n"));
  options.explain = "lr=3";
  EXPECT_THROW(said_by(options), Error);
}

}  // namespace
}  // namespace muster
