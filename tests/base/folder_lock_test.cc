#include "muster/base/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/units.h"
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

TEST(FolderLock, AnotherAttemptOfAStartMayShareIt) {
  const ScratchFolder folder;
  const auto claim = [&](const std::string& start, const std::string& attempt) {
    return FolderClaim{.folder = folder.path(), .start = start, .attempt = attempt, .patience = {}};
  };
  const auto error_of = [&](const FolderClaim& wish) {
    try {
      const FolderLock lock(wish);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  FolderLock first(claim("a", "0"));
  first.share();
  const std::string now = format_local_time(std::time(nullptr)).substr(0, 11);
  EXPECT_THAT(error_of(claim("a", "0")), HasSubstr(", since " + now));
  EXPECT_NE(error_of(claim("", "1")), "") << "nobody's start";
  FolderLock second(claim("a", "1"));
  EXPECT_EQ(second.why_not(), "");
  EXPECT_THAT(holder_of_folder(claim("b", "0")), HasSubstr("process "));
  first.remove_file_if_alone();
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/" + kFolderLock)) << "the second has it";
}

TEST(FolderLock, WhatCannotBeLockedIsSaid) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.path() + "/" + kFolderLock);
  EXPECT_EQ(FolderLock(folder.path(), "a").why_not(), "Is a directory");
}

// A full disk cuts it off.
TEST(FolderLock, ANoteThatIsCutOffAnywhereIsItsOwn) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/" + kFolderLock;
  std::optional<FolderLock> lock(std::in_place, folder.path(), "a");
  const std::string note = read_file(path);
  lock.reset();
  ASSERT_NE(note, "");
  for (size_t length = 0; length <= note.size(); ++length) {
    std::ofstream(path, std::ios::trunc) << note.substr(0, length);
    EXPECT_EQ(error_of_lock(folder.path(), "a"), "") << length;
  }
}

TEST(FolderLock, AnotherProgramsFileIsRefused) {
  const ScratchFolder folder;
  for (const std::string text : {"4711\n", "locked by hand", "{}\n"}) {
    std::ofstream(folder.path() + "/" + kFolderLock, std::ios::trunc) << text;
    EXPECT_THAT(error_of_lock(folder.path(), "a"), HasSubstr("another program's file")) << text;
  }
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
