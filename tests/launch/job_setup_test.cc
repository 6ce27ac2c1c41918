// The folder of a job of several hosts, which launchers of one start have in common.
#include "muster/launch/job_setup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <thread>

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

  static std::unique_ptr<JobSetup> launcher() {
    LaunchOptions options;
    options.argv = {"true"};
    options.run_dir = "runs/job";
    return std::make_unique<JobSetup>(options, RankRendezvous(), 1, "start-1");
  }

  const fs::path before_ = fs::current_path();
  const ScratchFolder folder_;
};

TEST_F(JobSetupTest, TheFolderStaysWhileAnotherLauncherMayWriteThere) {
  const auto first = launcher();
  auto other = launcher();
  first->remove_unused_folders();
  write_file("runs/job/run.json", "{}");
  EXPECT_TRUE(fs::exists("runs/job/run.json"));
  other.reset();
  first->remove_unused_folders();
  EXPECT_FALSE(fs::exists("runs/job"));
}

TEST_F(JobSetupTest, WhoMadeTheFolderWaitsForTheOthers) {
  const auto first = launcher();
  auto other = launcher();
  std::thread remover([&] { first->remove_unused_folders(); });
  write_file("runs/job/run.json", "{}");
  other.reset();
  remover.join();
  EXPECT_FALSE(fs::exists("runs/job"));
}

}  // namespace
}  // namespace muster
