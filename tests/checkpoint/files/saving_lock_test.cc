#include "muster/checkpoint/files/saving_lock.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/data/files.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A lock that is not in this process's list is another job's.
FolderLock others_lock(const std::string& folder, const std::string& launch) {
  FolderLock lock(
      {.folder = folder, .file = kSavingLock, .start = launch, .attempt = "0", .patience = {}});
  lock.share();
  return lock;
}

TEST(SavingLock, IsOfAllInThisProcess) {
  const test::TempFolder folder;
  auto first = lock_for_saving(folder / "new");
  EXPECT_EQ(lock_for_saving(folder.path() + "/./new"), first);
  EXPECT_EQ(other_saver(folder / "new"), "") << "not another";
  EXPECT_THAT(test::names_in(folder / "new"), ElementsAre(kSavingLock));
  first.reset();
  EXPECT_THAT(test::names_in(folder / "new"), IsEmpty());
}

TEST(SavingLock, ALaterAttemptHasItToo) {
  const test::TempFolder folder;
  {
    const FolderLock ends = others_lock(folder.path(), "launch");
    EXPECT_THAT(other_saver(folder.path()), HasSubstr("process "));
    EXPECT_EQ(lock_for_saving(folder.path(), {.launch = "launch", .attempt = 1})->why_not(), "");
    EXPECT_THAT(test::names_in(folder.path()), ElementsAre(kSavingLock)) << "the other's still";
  }
  EXPECT_EQ(other_saver(folder.path()), "");
}

TEST(SavingLock, WhereThereIsNoneItIsSaid) {
  const test::TempFolder folder;
  std::filesystem::create_directory(folder / kSavingLock);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(lock_for_saving(folder.path()));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("(Is a directory): another job that saves there is not refused"));
}

}  // namespace
}  // namespace muster
