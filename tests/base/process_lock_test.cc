#include "muster/base/process_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/device/scratch.h"

namespace muster {
namespace {

TEST(ProcessLock, TwoWritersOfAProcessAreOne) {
  const ScratchFolder folder;
  const auto first = lock_for_process(folder.path(), ".lock", {}, "test", "writes");
  EXPECT_EQ(lock_for_process(folder.path() + "/.", ".lock", {}, "test", "writes"), first);
  EXPECT_EQ(other_process_with(folder.path(), ".lock"), "");
}

TEST(ProcessLock, AForkedChildIsAnother) {
  const ScratchFolder folder;
  const auto held = lock_for_process(folder.path(), ".lock", {}, "test", "writes");
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(other_process_with(folder.path(), ".lock").empty() ? 1 : 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace muster
