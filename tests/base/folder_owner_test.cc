#include "muster/base/folder_owner.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "muster/base/error.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uid_t kAnother = 12345;

// What is said of it; empty: nothing.
std::string refusal_of(const std::string& folder) {
  try {
    check_folder_owner(folder);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
    return error.what();
  }
  return "";
}

class FolderOwner : public testing::Test {
 protected:
  std::string in(const std::string& name) const { return scratch_.path() + "/" + name; }
  void give_away(const std::string& name) const {
    ASSERT_EQ(::lchown(in(name).c_str(), kAnother, kAnother), 0);
  }

  const ScratchFolder scratch_;
};

TEST_F(FolderOwner, AnothersFolderIsRefused) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a folder away";
  fs::create_directories(in("runs/a"));
  EXPECT_EQ(refusal_of(in("runs")), "");
  EXPECT_EQ(refusal_of(in("absent/a")), "");
  give_away("runs");
  EXPECT_THAT(refusal_of(in("runs")), HasSubstr("of user 12345"));
  EXPECT_EQ(refusal_of(in("runs/a")), "") << "a folder of one's own that was named";
  const fs::path before = fs::current_path();
  fs::current_path(scratch_.path());
  EXPECT_THAT(refusal_of("runs/a"), HasSubstr("/runs' of user 12345"));
  EXPECT_THAT(refusal_of("./runs/b"), HasSubstr("/runs' of user 12345"));
  fs::current_path(before);
}

TEST_F(FolderOwner, WhoeverHasTheFolderAboveIsTrusted) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a folder away";
  fs::create_directories(in("project/runs"));
  give_away("project");
  give_away("project/runs");
  EXPECT_EQ(refusal_of(in("project/runs")), "");
}

TEST_F(FolderOwner, AnothersLinkIsRefused) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a link away";
  fs::create_directory(in("mine"));
  fs::create_directory_symlink(in("mine"), in("runs"));
  EXPECT_EQ(refusal_of(in("runs")), "");
  give_away("runs");
  EXPECT_THAT(refusal_of(in("runs")), HasSubstr("of user 12345"));
}

TEST_F(FolderOwner, FoldersAreMadeThroughNoLink) {
  EXPECT_TRUE(make_folder_below(scratch_.path(), "logs/0").valid());
  EXPECT_TRUE(make_folder_below(scratch_.path(), "logs/0").valid());
  fs::create_directory(in("elsewhere"));
  fs::create_directory_symlink(in("elsewhere"), in("linked"));
  EXPECT_THROW(make_folder_below(scratch_.path(), "linked/0"), Error);
  EXPECT_THROW(make_folder_below(scratch_.path(), "linked"), Error);
  EXPECT_TRUE(fs::is_empty(in("elsewhere")));
}

// A run's folder may be one that a program has files of its own in.
TEST_F(FolderOwner, AFileInThePlaceOfAFolderIsNamedAsOne) {
  const std::string file = scratch_.write("plans", "mine");
  try {
    make_folder_below(scratch_.path(), "plans");
    FAIL() << "no folder can be there";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected a folder, got the file '" + file + "'"));
  }
  EXPECT_TRUE(fs::is_regular_file(file));
}

TEST_F(FolderOwner, AFolderThatAnotherHasMadeThereIsRefused) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(in("logs"));
  give_away("logs");
  EXPECT_THROW(make_folder_below(scratch_.path(), "logs/0"), Error);
}

TEST_F(FolderOwner, ALogIsNoLinkAndNoPipe) {
  const Fd folder = make_folder_below(scratch_.path(), "logs");
  const std::string precious = scratch_.write("precious", "text");
  fs::create_symlink(precious, in("logs/0.out"));
  ASSERT_EQ(::mkfifo(in("logs/1.out").c_str(), 0600), 0);
  scratch_.write("logs/2.out", "of an earlier run");
  EXPECT_THROW(create_log(folder.get(), in("logs/0.out")), Error);
  EXPECT_THROW(create_log(folder.get(), in("logs/1.out")), Error);
  EXPECT_TRUE(create_log(folder.get(), in("logs/2.out")).valid());
  EXPECT_THROW(create_log(AT_FDCWD, in("logs/0.out")), Error);
  EXPECT_EQ(read_file(precious), "text");
  EXPECT_EQ(read_file(in("logs/2.out")), "");
}

// The folder's name may be another's by the time that the log is made.
TEST_F(FolderOwner, ALogIsMadeInTheFolderThatWasOpened) {
  const Fd folder = make_folder_below(scratch_.path(), "logs/0");
  fs::create_directory(in("elsewhere"));
  fs::rename(in("logs"), in("moved"));
  fs::create_directory(in("logs"));
  fs::create_directory_symlink(in("elsewhere"), in("logs/0"));
  create_log(folder.get(), in("logs/0/0.out"));
  EXPECT_TRUE(fs::exists(in("moved/0/0.out")));
  EXPECT_TRUE(fs::is_empty(in("elsewhere")));
}

}  // namespace
}  // namespace muster
