// What `muster tasks` has on the disk, and when: a library tells of each fsync and fdatasync, and
// holds them back as a slow disk does.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>

#include "muster/base/strings.h"
#include "muster_program.h"
#include "tasks_program.h"

namespace muster {
namespace {

using testing::HasSubstr;

class TasksDisk : public testing::Test {
 protected:
  TasksDisk() {
    settings_.environment = {{"LD_PRELOAD", HELD_SYNC_LIBRARY},
                             {"SYNC_TOLD", folder_.path() + "/told"},
                             {"SYNC_HOLD", folder_.path() + "/hold"}};
  }

  bool there(const char* name) const {
    return std::filesystem::exists(cat(folder_.path(), "/", name));
  }
  std::string told() const { return read_file(folder_.path() + "/told"); }

  // Until the disk is asked for something that it holds back.
  bool is_held() const {
    const Deadline deadline(std::chrono::seconds(60));
    while (!there("told") || told().find("held ") == std::string::npos) {
      if (deadline.passed())
        return false;
      ::usleep(2'000);
    }
    return true;
  }

  ScratchFolder folder_;
  ProgramSettings settings_;
};

TEST_F(TasksDisk, ATaskBeginsWhenTheEndBeforeItIsOnTheDisk) {
  folder_.write(
      "s.toml",
      task_table("a", "touch hold") + task_table("b", "touch begun", "after = [\"a\"]\n"));
  Program program({"tasks", "s.toml", "--cpus", "2", "--run-dir", "run"}, folder_, settings_);
  ASSERT_TRUE(is_held()) << "a's end was handed to the disk";
  ::usleep(300'000);
  EXPECT_FALSE(there("begun")) << "b has begun before a's end was on the disk";
  std::filesystem::remove(folder_.path() + "/hold");
  EXPECT_EQ(program.finish().code, 0);
  EXPECT_TRUE(there("begun"));
}

// What the task says of it cannot be written either.
TEST_F(TasksDisk, ATaskWhoseLogHasNoRoomIsTold) {
  folder_.write("s.toml", task_table("a", "head -c 200000 /dev/zero"));
  std::filesystem::create_directory(folder_.path() + "/small");
  const auto on_small_disk = [&](const std::string& command) {
    return from_shell(cat("unshare --mount sh -c 'mount -t tmpfs -o size=64k tmpfs small && exec ",
                          command,
                          "' \"$0\"; echo $?"),
                      folder_)
        .finish();
  };
  const Ran probe = on_small_disk("true");
  if (probe.out != "0\n")
    GTEST_SKIP() << "no file system of our own here: " << probe.err;
  const Ran ran = on_small_disk("\"$0\" tasks s.toml --run-dir small/run");
  EXPECT_THAT(ran.out, testing::EndsWith("1\n"));
  EXPECT_THAT(ran.err, HasSubstr("a failed: exit code 1"));
  EXPECT_THAT(ran.err, HasSubstr("disk      it is full now where the log is"));
}

TEST_F(TasksDisk, NothingBeginsBeforeTheRunItselfIsOnTheDisk) {
  folder_.write("hold", "");
  folder_.write("s.toml", task_table("a", "touch begun"));
  Program program({"tasks", "s.toml", "--run-dir", "run"}, folder_, settings_);
  ASSERT_TRUE(is_held());
  ::usleep(300'000);
  EXPECT_FALSE(there("begun"));
  std::filesystem::remove(folder_.path() + "/hold");
  EXPECT_EQ(program.finish().code, 0);
  const std::string run = std::filesystem::canonical(folder_.path() + "/run");
  EXPECT_THAT(in_order(told(),
                       {cat(" ", run, "/tasks.json\n"),
                        cat("fsync ", run, "\n"),
                        cat("fdatasync ", run, "/journal\n")}),
              testing::IsEmpty())
      << told();
}

}  // namespace
}  // namespace muster
