#include "muster/launch/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>

#include "muster/base/error.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

std::string error_of_lock(const std::string& folder, const std::string& start) {
  try {
    const FolderLock lock(folder, start);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FolderLock, OneStartAtATime) {
  const ScratchFolder folder;
  const std::string run = folder.path() + "/run";
  std::optional<FolderLock> first(std::in_place, run, "a");
  EXPECT_TRUE(first->is_new_start());
  first->share();
  EXPECT_THAT(error_of_lock(run, "b"),
              testing::AllOf(HasSubstr(run), HasSubstr("process "), HasSubstr("muster ps")));
  const FolderLock second(run, "a");  // another host of the same start
  EXPECT_FALSE(second.is_new_start());
  first.reset();
  EXPECT_NE(error_of_lock(run, "b"), "") << "the second is still there";
}

TEST(FolderLock, ItsHoldersEndSetsItFree) {
  const ScratchFolder folder;
  {
    const FolderLock ended(folder.path(), "a");
  }
  EXPECT_TRUE(FolderLock(folder.path(), "b").is_new_start());
  EXPECT_TRUE(FolderLock(folder.path(), "a").is_new_start());
  EXPECT_FALSE(FolderLock(folder.path(), "a").is_new_start())
      << "an agent that comes back to its job";
}

TEST(FolderLock, TheFirstIsAloneUntilItShares) {
  const ScratchFolder folder;
  FolderLock first(folder.path(), "a");
  std::atomic<bool> shared = false;
  std::thread other([&] {
    const FolderLock second(folder.path(), "a");
    EXPECT_TRUE(shared);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  shared = true;
  first.share();
  other.join();
}

TEST(FolderLock, AFolderThatWasRemovedIsMadeAgain) {
  const ScratchFolder folder;
  const std::string run = folder.path() + "/run";
  const FolderLock first(run, "a");
  std::filesystem::remove_all(run);
  const FolderLock second(run, "b");
  EXPECT_TRUE(std::filesystem::exists(run + "/" + kFolderLock));
}

}  // namespace
}  // namespace muster
