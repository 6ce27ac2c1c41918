// The folder of a job of several hosts, which launchers of one start have in common.
#include "muster/launch/job_setup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "muster/base/fd.h"
#include "muster/launch/launch.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// Below the current folder, as runs of their own name are.
class JobSetupTest : public testing::Test {
 protected:
  JobSetupTest() { fs::current_path(folder_.path()); }
  ~JobSetupTest() override { fs::current_path(before_); }

  static std::unique_ptr<JobSetup> launcher(const std::string& start = "start-1",
                                            const std::string& plan = "") {
    LaunchOptions options;
    options.argv = {"true"};
    options.run_dir = "runs/job";
    options.plan = plan;
    return std::make_unique<JobSetup>(options, RankRendezvous(), 1, start);
  }

  const fs::path before_ = fs::current_path();
  const ScratchFolder folder_;
};

TEST_F(JobSetupTest, TheFolderStaysWhileAnotherLauncherMayWriteThere) {
  const auto first = launcher();
  auto other = launcher();
  first->remove_unused_folders([] { return false; });
  EXPECT_TRUE(fs::exists("runs/job"));
  other.reset();
  first->remove_unused_folders([] { return false; });
  EXPECT_FALSE(fs::exists("runs/job"));
}

TEST_F(JobSetupTest, WhoMadeTheFolderWaitsForTheOthers) {
  const auto first = launcher();
  auto other = launcher();
  int waits = 0;
  first->remove_unused_folders([&] {
    if (++waits == 2) {
      write_file("runs/job/run.json", "{}");
      other.reset();
    }
    return true;
  });
  EXPECT_EQ(waits, 2);
  EXPECT_FALSE(fs::exists("runs/job"));
}

// What the others write while they are waited for counts.
TEST_F(JobSetupTest, TheFolderStaysWithWhatAnotherLeavesThere) {
  const auto first = launcher();
  auto other = launcher();
  first->remove_unused_folders([&] {
    write_file("runs/job/model.safetensors", "");
    other.reset();
    return true;
  });
  EXPECT_TRUE(fs::exists("runs/job/model.safetensors"));
}

TEST_F(JobSetupTest, NobodyWaitsForAFolderThatStaysAnyway) {
  const auto first = launcher();
  const auto other = launcher();
  write_file("runs/job/model.safetensors", "");
  first->remove_unused_folders([] {
    ADD_FAILURE() << "it waits";
    return false;
  });
}

// Another launcher is about to write its record: the folder may go after that.
TEST_F(JobSetupTest, AFileThatIsBeingWrittenIsWaitedFor) {
  const auto first = launcher();
  auto other = launcher();
  const std::string aside = name_aside("runs/job/run.json");
  write_file(aside, "{}");
  first->remove_unused_folders([&] {
    rename_aside(aside, "runs/job/run.json");
    other.reset();
    return true;
  });
  EXPECT_FALSE(fs::exists("runs/job"));
}

TEST_F(JobSetupTest, ThePlanOfAnEarlierStartGoes) {
  launcher("start-1");
  write_file("runs/job/plan.json", "{}");
  launcher("start-2", "runs/job/plan.json");
  EXPECT_TRUE(fs::exists("runs/job/plan.json")) << "it is the file of --plan";
  launcher("start-3");
  EXPECT_FALSE(fs::exists("runs/job/plan.json"));
}

// Where locks reach one host alone, as here those of a launcher that is gone, only the start's id
// says whose the file is.
TEST_F(JobSetupTest, ThePlanOfThisStartStays) {
  launcher("start-1");
  write_file("runs/job/plan.json", "{}");
  launcher("start-1");
  EXPECT_TRUE(fs::exists("runs/job/plan.json"));
}

}  // namespace
}  // namespace muster
