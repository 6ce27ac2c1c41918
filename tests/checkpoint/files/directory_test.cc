#include "muster/checkpoint/files/directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>

#include "muster/base/error.h"
#include "tests/data/files.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CheckpointDirectory, ListsNewestFirstAndNothingElse) {
  const test::TempFolder folder;
  for (const char* name : {"step-9",
                           "step-10",
                           "step-100",
                           "step-010",
                           "step-",
                           "step--1",
                           "step-5x",
                           "step-11.tmp-1",
                           "other",
                           "xstep-3",
                           "step-99999999999999999999"})
    fs::create_directory(folder / name);
  std::vector<int64_t> steps;
  for (const auto& found : list_checkpoints(folder.path()))
    steps.push_back(found.step);
  EXPECT_THAT(steps, ElementsAre(100, 10, 9));
  EXPECT_THAT(list_checkpoints(folder / "none"), IsEmpty());
  test::put_file(folder / "file", "");
  EXPECT_THROW(list_checkpoints(folder / "file"), Error);
}

TEST(Staging, AppearsOnlyWhenPublished) {
  const test::TempFolder folder;
  {
    Staging staging(folder.path(), 7);
    test::put_file(staging.path() + "/file", "x");
    EXPECT_THAT(list_checkpoints(folder.path()), IsEmpty());
    EXPECT_EQ(staging.publish(), folder / "step-7");
  }
  EXPECT_THAT(test::names_in(folder.path()), ElementsAre("step-7"));
  EXPECT_EQ(test::get_file(folder / "step-7/file"), "x");
}

TEST(Staging, LeavesNothingWhenGivenUp) {
  const test::TempFolder folder;
  {
    test::put_file(Staging(folder.path(), 7).path() + "/file", "x");
  }
  EXPECT_THAT(test::names_in(folder.path()), IsEmpty());
}

TEST(Staging, ReplacesOneOfTheSameStep) {
  const test::TempFolder folder;
  fs::create_directory(folder / "step-7");
  test::put_file(folder / "step-7/old", "x");
  {
    Staging staging(folder.path(), 7);
    test::put_file(staging.path() + "/new", "y");
    staging.publish();
  }
  EXPECT_THAT(test::names_in(folder.path()), ElementsAre("step-7"));
  EXPECT_THAT(test::names_in(folder / "step-7"), ElementsAre("new"));
}

TEST(Leftovers, OfDeadWritersGoOthersStay) {
  const test::TempFolder folder;
  Staging alive(folder.path(), 8);
  for (const char* name : {"step-7.tmp-1-2", "other.tmp-1", "step-6"}) {
    fs::create_directory(folder / name);
    test::put_file(folder / (std::string(name) + "/file"), "x");
  }
  test::put_file(folder / "step-5.tmp-3", "a file, not ours");
  ::testing::internal::CaptureStderr();
  remove_leftovers(folder.path());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("step-7.tmp-1-2"));
  EXPECT_THAT(
      test::names_in(folder.path()),
      ElementsAre(
          "other.tmp-1", "step-5.tmp-3", "step-6", fs::path(alive.path()).filename().string()));
}

TEST(Leftovers, LinksAreNotFollowed) {
  const test::TempFolder folder;
  const test::TempFolder elsewhere;
  test::put_file(elsewhere / "precious", "x");
  fs::create_directory(folder / "step-1.tmp-1");
  fs::create_symlink(elsewhere.path(), folder / "step-1.tmp-1/link");
  fs::create_symlink(elsewhere.path(), folder / "step-2.tmp-1");
  remove_leftovers(folder.path());
  EXPECT_EQ(test::get_file(elsewhere / "precious"), "x");
  EXPECT_THAT(test::names_in(folder.path()), ElementsAre("step-2.tmp-1"));
}

TEST(Space, TooLittleIsToldWithBothSizes) {
  const test::TempFolder folder;
  EXPECT_NO_THROW(check_space(folder.path(), 1));
  try {
    check_space(folder.path(), uint64_t{1} << 62);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr(folder.path()));
  }
}

TEST(MakeDirectory, MakesParentsAndAcceptsWhatIsThere) {
  const test::TempFolder folder;
  make_directory(folder / "a/b/c");
  make_directory(folder / "a/b/c");
  EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
  test::put_file(folder / "file", "");
  EXPECT_THROW(make_directory(folder / "file"), Error);
  EXPECT_THROW(make_directory(folder / "file/sub"), Error);
}

}  // namespace
}  // namespace muster
