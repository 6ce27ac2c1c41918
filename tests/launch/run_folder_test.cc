#include "muster/launch/run_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// In a folder of its own, which is the current one.
class RunFolder : public testing::Test {
 protected:
  RunFolder() {
    ::unsetenv("MUSTER_RUN_DIR");
    fs::current_path(folder_.path());
  }
  ~RunFolder() override { fs::current_path(before_); }

  static std::string run(const std::string& name) { return resolve_run_folder("runs/" + name); }
  static std::string latest() { return fs::read_symlink("runs/latest").string(); }

  // Sets the time at which the folder changed last, `seconds` from now.
  static void set_age(const std::string& name, int seconds) {
    fs::last_write_time("runs/" + name,
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }

  const fs::path before_ = fs::current_path();
  const ScratchFolder folder_;
};

TEST_F(RunFolder, LatestPointsToTheNewest) {
  EXPECT_TRUE(make_run_folder(run("a")));
  EXPECT_EQ(latest(), "a");
  EXPECT_TRUE(make_run_folder(run("b")));
  EXPECT_EQ(latest(), "b");
  EXPECT_FALSE(make_run_folder(run("a"))) << "the folder of an earlier run, used again";
  EXPECT_EQ(latest(), "a");
  EXPECT_EQ(run("latest"), fs::canonical("runs").string() + "/a");
  EXPECT_EQ(run("latest/"), fs::canonical("runs").string() + "/a");
}

TEST_F(RunFolder, IsNoneInAnothersRuns) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory("runs");
  ASSERT_EQ(::chown("runs", 12345, 12345), 0);
  EXPECT_THROW(make_run_folder(run("a")), Error);
  EXPECT_TRUE(fs::is_empty("runs"));
}

TEST_F(RunFolder, LatestIsOfRunsBelowTheCurrentFolderAlone) {
  make_run_folder(folder_.path() + "/elsewhere/a");
  EXPECT_FALSE(fs::exists(fs::symlink_status("elsewhere/latest")));
  make_run_folder(run("outer"));
  ::setenv("MUSTER_RUN_DIR", "/runs/outer", 1);
  make_run_folder(run("inner"));
  ::unsetenv("MUSTER_RUN_DIR");
  EXPECT_EQ(latest(), "outer") << "a job within a run is not the newest run";
}

TEST_F(RunFolder, WhatIsNoLinkIsLeftAlone) {
  fs::create_directories("runs/latest");
  make_run_folder(run("a"));
  EXPECT_TRUE(fs::is_directory(fs::symlink_status("runs/latest")));
}

TEST_F(RunFolder, AnUnusedFolderGoesAndLatestIsTheRunBefore) {
  make_run_folder(run("old"));
  make_run_folder(run("older"));
  set_age("old", 10);
  set_age("older", 20);
  make_run_folder(run("new"));
  folder_.write("runs/new/plan.json", "{}");
  folder_.write("runs/new/run.json", "{}");
  fs::create_directories("runs/new/activity/0");
  folder_.write("runs/new/activity/0/1", "what rank 1 did");
  remove_unused_run_folder(run("new"));
  EXPECT_FALSE(fs::exists("runs/new"));
  EXPECT_EQ(latest(), "old");
  remove_unused_run_folder(run("old"));
  remove_unused_run_folder(run("older"));
  EXPECT_TRUE(fs::is_empty("runs")) << "no link to nothing";
}

TEST_F(RunFolder, TheRunBeforeIsTheSameWhateverTheClockSays) {
  make_run_folder(run("long-ago"));
  make_run_folder(run("before"));
  set_age("long-ago", -3600);  // the clock was set back since
  std::string latest_before;
  make_run_folder(run("new"), &latest_before);
  EXPECT_EQ(latest_before, "before");
  remove_unused_run_folder(run("new"), latest_before);
  EXPECT_EQ(latest(), "before");
}

TEST_F(RunFolder, AFolderWithResultsStays) {
  make_run_folder(run("a"));
  folder_.write("runs/a/plan.json", "{}");
  folder_.write("runs/a/metrics.jsonl", "{}\n");
  remove_unused_run_folder(run("a"));
  EXPECT_TRUE(fs::exists("runs/a/plan.json"));
  fs::create_directories("elsewhere/b");
  remove_unused_run_folder(resolve_run_folder("elsewhere/b"));
  EXPECT_TRUE(fs::exists("elsewhere/b")) << "a folder that was asked for";
}

// At every moment the link is there and points to a folder: it is replaced, never removed and made.
TEST_F(RunFolder, WhoKeepsItsLockHoldsUpNobody) {
  make_run_folder(run("a"));
  const Fd held(::open("runs", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  make_run_folder(run("b"));
  EXPECT_EQ(latest(), "b");
}

TEST_F(RunFolder, RunsThatBeginAndEndAtOnceAgree) {
  make_run_folder(run("kept"));
  folder_.write("runs/kept/result", "");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        const std::string mine = run(cat(t, "-", i));
        make_run_folder(mine);
        EXPECT_TRUE(fs::is_symlink("runs/latest"));
        remove_unused_run_folder(mine);
        EXPECT_TRUE(fs::is_symlink("runs/latest"));
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(latest(), "kept");
  EXPECT_EQ(std::distance(fs::directory_iterator("runs"), fs::directory_iterator()), 2);
}

}  // namespace
}  // namespace muster
