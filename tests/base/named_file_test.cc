#include "muster/base/named_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

std::string why_not(const std::string& path) {
  try {
    check_named_file("--out", path);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(NamedFile, APipeIsWrittenToAndStays) {
  const ScratchFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(why_not(pipe), "");
  std::string read;
  std::thread reader([&] { read = read_file(pipe); });
  write_named_file(pipe, "picture");
  reader.join();
  EXPECT_EQ(read, "picture");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(NamedFile, ADeviceIsWrittenToAndStays) {
  write_named_file("/dev/null", "picture");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

// /dev/shm has plain files, which are replaced.
TEST(NamedFile, AFileInMemoryIsReplaced) {
  const std::string path = "/dev/shm/muster-named-" + std::to_string(::getpid());
  write_named_file(path, "first");
  write_named_file(path, "second");
  EXPECT_EQ(read_file(path), "second");
  std::filesystem::remove(path);
}

// What the program has printed before stays.
TEST(NamedFile, ADescriptorIsAppendedTo) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/out";
  const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  write_all(fd.get(), "before ");
  write_named_file("/dev/fd/" + std::to_string(fd.get()), "picture");
  EXPECT_EQ(read_file(path), "before picture");
}

TEST(NamedFile, WhatIsBehindALinkIsReplaced) {
  const ScratchFolder folder;
  const std::filesystem::path here = folder.path();
  std::filesystem::create_directory(here / "there");
  folder.write("there/file", "old");
  std::filesystem::create_symlink("there/file", here / "link");
  std::filesystem::create_symlink("there/new", here / "to_nothing_yet");
  write_named_file(here / "link", "new");
  write_named_file(here / "to_nothing_yet", "made");
  EXPECT_TRUE(std::filesystem::is_symlink(here / "link"));
  EXPECT_EQ(read_file(here / "there/file"), "new");
  EXPECT_EQ(read_file(here / "there/new"), "made");
  EXPECT_EQ(why_not(here / "link"), "");
  EXPECT_THAT(why_not(here / "there"),
              HasSubstr("--out: expected a file that can be written, got '"));
  EXPECT_THAT(why_not(here / "there"), HasSubstr("Is a directory; give another"));
  EXPECT_THAT(why_not(here / "nowhere/file"), HasSubstr("No such file or directory"));
}

TEST(NamedFile, TwoNamesOfOneFileAreFound) {
  const ScratchFolder folder;
  const std::string here = folder.path();
  folder.write("one", "");
  std::filesystem::create_symlink("one", here + "/link");
  EXPECT_TRUE(is_same_file(here + "/one", here + "/link"));
  EXPECT_TRUE(is_same_file(here + "/new", here + "/./new"));
  EXPECT_FALSE(is_same_file(here + "/one", here + "/other"));
  EXPECT_FALSE(is_same_file("/dev/null", "/dev/null"));
}

}  // namespace
}  // namespace muster
