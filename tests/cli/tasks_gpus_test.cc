// The real `muster tasks` on a machine with two GPUs that a stand-in for the driver's library invents: what
// becomes of tasks whose GPUs cannot be leased, and what their ranks see.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "muster_program.h"
#include "tests/cli/tasks_program.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kGpuZero = "GPU-cccccccc-0000-4000-8000-000000000001";
constexpr const char* kGpuOne = "GPU-dddddddd-0000-4000-8000-000000000002";

class TasksOnTwoGpus : public testing::Test {
 protected:
  TasksOnTwoGpus() { use_memory(8'589'934'592); }

  // That is free of the 8 GiB of each GPU.
  void use_memory(uint64_t free) {
    const auto gpu = [&](const char* uuid, const char* pci) {
      return cat("|uuid=", uuid, ",name=Test GPU,total=8589934592,free=", free, ",cc=9.0,pci=", pci);
    };
    settings_.environment = {{"MUSTER_NVML_LIBRARY", FAKE_NVML_LIBRARY},
                             {"FAKE_NVML", cat("version=550.54", gpu(kGpuZero, "00000000:01:00.0"),
                                               gpu(kGpuOne, "00000000:02:00.0"))},
                             {"CUDA_VISIBLE_DEVICES", "0,1"},
                             {"MUSTER_RUNTIME_DIR", folder_.path()}};
  }

  Ran tasks(const std::string& spec, std::vector<std::string> flags = {}) {
    folder_.write("t.toml", spec);
    flags.insert(flags.begin(), {"tasks", "--json", "--run-dir", "run"});
    flags.push_back("t.toml");
    return muster(std::move(flags), folder_, settings_);
  }

  static std::string state_of(const Ran& ran, size_t task) {
    return nlohmann::json::parse(ran.out)["tasks"][task]["state"];
  }

  ScratchFolder folder_;
  ProgramSettings settings_;
};

TEST_F(TasksOnTwoGpus, ALeaseThatCannotBeTakenEndsOneTask) {
  const Ran ran =
      tasks(task_table("removes", "rm -r $MUSTER_RUNTIME_DIR/muster-*", "needs = { gpus = 1 }") +
                task_table("hit", "true", "needs = { gpus = 1 }\nafter = ['removes']\npriority = 1") +
                task_table("next", "true", "needs = { gpus = 1 }\nafter = ['removes']") +
                task_table("cpu", "true", "after = ['removes']"),
            {"--jobs", "1"});
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_EQ(state_of(ran, 0), "done");
  EXPECT_EQ(state_of(ran, 1), "failed");
  EXPECT_EQ(state_of(ran, 2), "done") << "the folder was made anew";
  EXPECT_EQ(state_of(ran, 3), "done");
  EXPECT_THAT(ran.err, AllOf(HasSubstr("hit failed: lease: cannot open"), HasSubstr("(GPU "),
                             HasSubstr("or give --no-lease")));
}

TEST_F(TasksOnTwoGpus, WhereNoLeaseCanBeTakenTheOtherTasksGoOn) {
  const Ran ran =
      tasks(task_table("spoils", "cd $MUSTER_RUNTIME_DIR; rm -r muster-*; touch muster-$(id -u)",
                       "needs = { gpus = 1 }") +
            task_table("gpu", "true", "needs = { gpus = 1 }\nafter = ['spoils']") +
            task_table("cpu", "true", "after = ['spoils']") + task_table("last", "true", "after = ['cpu']"));
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_EQ(state_of(ran, 1), "failed");
  EXPECT_EQ(state_of(ran, 2), "done");
  EXPECT_EQ(state_of(ran, 3), "done");
}

TEST_F(TasksOnTwoGpus, ALeaseThatCannotBeTakenIsTriedAgainAsATaskIs) {
  const Ran ran = tasks(
      task_table("removes", "rm -r $MUSTER_RUNTIME_DIR/muster-*", "needs = { gpus = 1 }") +
      task_table("hit", "true", "needs = { gpus = 1 }\nafter = ['removes']\nretries = 1\nback_off = '1ms'"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(state_of(ran, 1), "done");
}

}  // namespace
}  // namespace muster
