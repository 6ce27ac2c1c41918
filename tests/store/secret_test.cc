#include "muster/store/secret.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;
using testing::HasSubstr;
using testing::Not;

class EnvironmentGuard {
 public:
  EnvironmentGuard() { clear(); }
  ~EnvironmentGuard() { clear(); }

 private:
  static void clear() {
    ::unsetenv("MUSTER_SECRET_FD");
    ::unsetenv("MUSTER_SECRET_FILE");
  }
};

std::string write_secret_file(const TempDir& dir, const std::string& text, mode_t mode) {
  const std::string path = dir.file("secret");
  write_file(path, text);
  ::chmod(path.c_str(), mode);
  return path;
}

TEST(Secret, IsRandomAndAsLongAsItSays) {
  const Secret a = Secret::make();
  const Secret b = Secret::make();
  EXPECT_EQ(a.bytes().size(), Secret::kBytes);
  EXPECT_TRUE(a.bytes() != b.bytes());
  EXPECT_TRUE(Secret().empty());
  EXPECT_FALSE(a.empty());
}

TEST(Secret, SurvivesBeingWrittenInHexadecimal) {
  const Secret secret = Secret::make();
  EXPECT_EQ(secret.hex().size(), 64U);
  EXPECT_TRUE(Secret::from_hex(" " + secret.hex() + "\n").bytes() == secret.bytes());
}

TEST(Secret, RefusesOtherTextWithoutShowingIt) {
  const std::string digits(64, 'a');
  for (const std::string& text :
       {std::string(), digits.substr(1), digits + "a", digits.substr(1) + "g"}) {
    const auto message = error_of(ErrorCode::invalid_argument, [&] { Secret::from_hex(text); });
    EXPECT_THAT(message, Not(HasSubstr("aaaa")));
  }
}

TEST(Secret, IsWrittenWithWhatFollowsIt) {
  const Secret secret = Secret::make();
  const TempDir dir;
  const std::string path = write_secret_file(dir, "", 0600);
  secret.write_to(open_path(path, O_WRONLY).get(), "\nmore", path);
  EXPECT_EQ(read_file(path), cat(secret.hex(), "\nmore"));
}

TEST(Secret, IsReadFromAMemfdByManyReadersAndChangedByNone) {
  const Secret secret = Secret::make();
  const Fd fd = secret.to_memfd();
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(Secret::from_fd(fd.get()).bytes() == secret.bytes());
  EXPECT_EQ(::lseek(fd.get(), 0, SEEK_CUR), 64);  // where writing left it
  EXPECT_LT(::write(fd.get(), "x", 1), 0);
  EXPECT_TRUE((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  ChildProcess child([&](const auto& say) {
    say(Secret::from_fd(fd.get()).bytes() == secret.bytes() ? "the same" : "another");
  });
  EXPECT_EQ(child.hear(), "the same");
}

TEST(Secret, IsNotReadFromAPipeOrNothing) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd read_end(ends[0]), write_end(ends[1]);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { Secret::from_fd(read_end.get()); }),
              HasSubstr("pipe"));
  EXPECT_THAT(error_of(ErrorCode::io, [] { Secret::from_fd(987); }), HasSubstr("987"));
}

TEST(Secret, IsReadFromAPrivateFileOnly) {
  const TempDir dir;
  const Secret secret = Secret::make();
  for (const mode_t mode : {0600, 0400}) {
    const std::string path = write_secret_file(dir, secret.hex() + "\n", mode);
    EXPECT_TRUE(Secret::from_file(path).bytes() == secret.bytes());
  }
  const std::string marked = write_secret_file(dir, "\xef\xbb\xbf" + secret.hex() + "\n", 0600);
  EXPECT_TRUE(Secret::from_file(marked).bytes() == secret.bytes());
  for (const mode_t mode : {0640, 0604, 0620, 0644, 0777}) {
    const std::string path = write_secret_file(dir, secret.hex(), mode);
    EXPECT_THAT(error_of(ErrorCode::failed_precondition, [&] { Secret::from_file(path); }),
                testing::AllOf(HasSubstr(path), HasSubstr("0600"), Not(HasSubstr(secret.hex()))));
  }
  EXPECT_THAT(error_of(ErrorCode::io, [&] { Secret::from_file(dir.file("absent")); }),
              HasSubstr("absent"));
  error_of(ErrorCode::failed_precondition, [&] { Secret::from_file(dir.file(".")); });
}

// Whether a process that is not root, of this group, takes the file.
bool another_user_takes(const std::string& path, gid_t group) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 2;
    if (::setgroups(0, nullptr) == 0 && ::setgid(group) == 0 && ::setuid(12345) == 0) {
      try {
        code = Secret::from_file(path).empty() ? 1 : 0;
      } catch (const Error&) {
        code = 1;
      }
    }
    ::_exit(code);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2) << status;
  return WEXITSTATUS(status) == 0;
}

TEST(Secret, OfRootForAGroupIsReadAsPodsHaveIt) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a file to a group that it is not in";
  constexpr gid_t kGroup = 23456;
  const TempDir dir;
  ASSERT_EQ(::chmod(dir.file("").c_str(), 0755), 0);
  const auto file = [&](uid_t owner, mode_t mode) {
    std::string path = write_secret_file(dir, Secret::make().hex(), mode);
    EXPECT_EQ(::chown(path.c_str(), owner, kGroup), 0);
    return path;
  };
  EXPECT_TRUE(another_user_takes(file(0, 0440), kGroup));
  EXPECT_FALSE(another_user_takes(file(0, 0440), kGroup + 1)) << "of another group";
  for (const mode_t mode : {0460, 0444, 0441, 0644})
    EXPECT_FALSE(another_user_takes(file(0, mode), kGroup)) << mode;
  EXPECT_FALSE(another_user_takes(file(12345, 0440), kGroup)) << "the user's own";
}

TEST(Secret, ComesFromTheEnvironment) {
  const EnvironmentGuard guard;
  EXPECT_FALSE(Secret::from_environment());
  const TempDir dir;
  const Secret in_file = Secret::make();
  ::setenv("MUSTER_SECRET_FILE", write_secret_file(dir, in_file.hex(), 0600).c_str(), 1);
  EXPECT_TRUE(Secret::from_environment()->bytes() == in_file.bytes());
  const Secret in_fd = Secret::make();
  const Fd fd = in_fd.to_memfd();
  ::setenv("MUSTER_SECRET_FD", std::to_string(fd.get()).c_str(), 1);
  EXPECT_TRUE(Secret::from_environment()->bytes() == in_fd.bytes());
  ::setenv("MUSTER_SECRET_FD", "-3", 1);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { Secret::from_environment(); }),
              HasSubstr("-3"));
}

}  // namespace
}  // namespace muster
