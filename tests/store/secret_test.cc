#include "muster/store/secret.h"

#include <fcntl.h>
#include <sys/stat.h>

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
  for (const mode_t mode : {0640, 0604, 0620, 0644, 0777}) {
    const std::string path = write_secret_file(dir, secret.hex(), mode);
    EXPECT_THAT(error_of(ErrorCode::failed_precondition, [&] { Secret::from_file(path); }),
                testing::AllOf(HasSubstr(path), HasSubstr("0600"), Not(HasSubstr(secret.hex()))));
  }
  EXPECT_THAT(error_of(ErrorCode::io, [&] { Secret::from_file(dir.file("absent")); }),
              HasSubstr("absent"));
  error_of(ErrorCode::failed_precondition, [&] { Secret::from_file(dir.file(".")); });
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
