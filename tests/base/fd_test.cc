#include "muster/base/fd.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "muster/base/error.h"

namespace muster {
namespace {

class FdTest : public testing::Test {
 protected:
  FdTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "muster-base-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~FdTest() override { std::filesystem::remove_all(dir_); }

  static bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
  static Fd null_device() { return Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)); }

  std::string dir_;
};

TEST_F(FdTest, ClosesWhatItOwns) {
  int number = -1;
  {
    const Fd fd = null_device();
    number = fd.get();
    EXPECT_TRUE(fd.valid());
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
  EXPECT_FALSE(Fd().valid());
}

TEST_F(FdTest, OnlyAPlainFileIsReadAndAPipeIsNotWaitedFor) {
  write_file(dir_ + "/plain", "1234");
  EXPECT_EQ(read_plain_file(dir_ + "/plain"), "1234");
  EXPECT_EQ(read_plain_file(dir_ + "/plain", 1), "12");
  ASSERT_EQ(::mkfifo((dir_ + "/pipe").c_str(), 0600), 0);
  for (const std::string& path : {dir_ + "/pipe", dir_, std::string("/dev/zero"), dir_ + "/none"})
    EXPECT_THROW(read_small_plain_file(path), Error) << path;
  try {
    open_plain_file(dir_ + "/pipe", "room: ");
    ADD_FAILURE() << "a pipe was opened";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), testing::StartsWith("room: expected a file at '"));
  }
}

// The place is for who reads a card: of what opens files for all, it would say nothing.
TEST_F(FdTest, ErrorsNameTheCallersPlace) {
  const std::string none = dir_ + "/none";
  rlimit open_files = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &open_files), 0);
  const std::function<void()> calls[] = {[&] { open_path(none, O_RDONLY); },
                                         [&] { open_plain_file(none); },
                                         [&] { open_plain_file(dir_); },
                                         [&] { read_file(none); },
                                         [&] { read_file(dir_); },
                                         [&] { read_small_file(none); },
                                         [&] { read_plain_file(none); },
                                         [&] { read_small_plain_file(none); },
                                         [&] {
                                           const rlimit no_more = {.rlim_cur = 0,
                                                                   .rlim_max = open_files.rlim_max};
                                           ::setrlimit(RLIMIT_NOFILE, &no_more);
                                           open_pipe();
                                         }};
  for (size_t i = 0; i < std::size(calls); ++i) {
    try {
      calls[i]();
      ADD_FAILURE() << i << ": no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.where(), testing::StartsWith("fd_test.cc:")) << i;
    }
  }
  ::setrlimit(RLIMIT_NOFILE, &open_files);
}

TEST_F(FdTest, MovesOwnershipOnce) {
  Fd a = null_device();
  const int number = a.get();
  Fd b = std::move(a);
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(b.get(), number);
  Fd c = null_device();
  const int replaced = c.get();
  c = std::move(b);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_EQ(c.get(), number);
  EXPECT_EQ(c.release(), number);
  EXPECT_TRUE(is_open(number));
  ::close(number);
}

TEST_F(FdTest, WritesAllThroughASmallPipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd from(ends[0]);
  Fd to(ends[1]);
  const std::string bytes(1 << 20, 'x');
  std::thread writer([&] {
    write_all(to.get(), bytes);
    to.reset();
  });
  std::string received;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(from.get(), buffer, sizeof(buffer))) > 0;)
    received.append(buffer, static_cast<size_t>(n));
  writer.join();
  EXPECT_TRUE(received == bytes);
}

TEST_F(FdTest, FilesAreReplacedWholeAndReadWhole) {
  const std::string path = dir_ + "/file";
  const std::string bytes = std::string("\0binary\n", 8) + std::string(200'000, 'y');
  write_file(path, "before");
  write_file(path, bytes);
  EXPECT_TRUE(read_file(path) == bytes);
  EXPECT_TRUE(read_file(path, bytes.size()) == bytes);
  EXPECT_TRUE(read_file(path, 100'000) == bytes.substr(0, 100'001));
  EXPECT_EQ(read_file("/dev/zero", 7).size(), 8U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);  // nothing left aside
}

TEST_F(FdTest, ErrorsNameThePath) {
  for (const auto& attempt :
       std::vector<std::function<void()>>{[&] { read_file(dir_ + "/absent"); },
                                          [&] { write_file(dir_ + "/absent/f", ""); },
                                          [&] { read_file(dir_); }}) {
    try {
      attempt();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_THAT(error.message(), testing::HasSubstr(dir_));
    }
  }
  EXPECT_THROW(write_all(-1, "x"), Error);
}

// The name of the file aside says nothing to a person, and the file itself must not stay.
TEST_F(FdTest, AFileThatCannotBeReplacedIsNamedAlone) {
  std::filesystem::create_directory(dir_ + "/taken");
  for (const auto& path : {dir_ + "/taken", dir_ + "/absent/f"}) {
    try {
      write_file(path, "x");
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), testing::StartsWith("cannot write '" + path + "': "));
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

// Whatever cannot grow (a full disk, a quota, ulimit -f) is named, whoever writes.
TEST_F(FdTest, ANameIsTakenOnceOnly) {
  const std::string path = dir_ + "/new";
  write_file(path + ".1", "one");
  EXPECT_EQ(rename_if_new(path + ".1", path), 0);
  write_file(path + ".2", "two");
  EXPECT_EQ(rename_if_new(path + ".2", path), EEXIST);
  EXPECT_EQ(read_file(path), "one");
  EXPECT_EQ(read_file(path + ".2"), "two");
}

TEST_F(FdTest, AFileIsAtItsNameOnly) {
  const std::string path = dir_ + "/file";
  write_file(path, "text");
  const Fd file = open_plain_file(path);
  EXPECT_TRUE(is_at(file, path));
  std::filesystem::create_symlink(path, dir_ + "/link");
  EXPECT_FALSE(is_at(file, dir_ + "/link"));
  write_file(path, "text");
  EXPECT_FALSE(is_at(file, path)) << "it is another file of the same text";
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(is_at(file, path)) << "the other end of a pipe is not waited for";
}

TEST_F(FdTest, AFileThatCannotGrowIsNamed) {
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const Fd limited(::open((dir_ + "/limited").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const auto why_not = [](int fd) -> std::string {
    try {
      write_all(fd, "x");
    } catch (const Error& error) {
      return error.message();
    }
    return "written";
  };
  EXPECT_THAT(why_not(full.get()), testing::StartsWith("cannot write '/dev/full': No space left"));
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const std::string why = why_not(limited.get());
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(why,
            "cannot write '" + dir_ +
                "/limited': File too large; raise the limit of file sizes (ulimit -f)");
}

TEST_F(FdTest, AnErrorNamesThePlaceOfTheCaller) {
  const std::string none = dir_ + "/none";
  const auto where_of = [](auto open) -> std::string {
    try {
      open();
    } catch (const Error& error) {
      return error.where();
    }
    return "opened";
  };
  EXPECT_THAT(where_of([&] { open_path(none, O_RDONLY); }), testing::StartsWith("fd_test.cc:"));
  EXPECT_THAT(where_of([&] { read_file(none); }), testing::StartsWith("fd_test.cc:"));
  EXPECT_THAT(where_of([&] { read_small_file(none); }), testing::StartsWith("fd_test.cc:"));
}

}  // namespace
}  // namespace muster
