#include "muster/base/patient_write.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "muster/base/clock.h"

namespace muster {
namespace {

using std::chrono::milliseconds;

struct Ends {
  Fd to;
  Fd from;
};

Ends make_pipe() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {Fd(ends[1]), Fd(ends[0])};
}

Ends make_socket_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {Fd(ends[1]), Fd(ends[0])};
}

class WriteWithin : public testing::TestWithParam<Ends (*)()> {};

TEST_P(WriteWithin, GivesUpOnAReaderThatHasStopped) {
  const Ends ends = GetParam()();
  const auto start = Clock::now();
  EXPECT_FALSE(write_within(ends.to.get(), std::string(1 << 20, 'x'), milliseconds(20)));
  EXPECT_FALSE(write_within(ends.to.get(), "y", milliseconds(0)));
  EXPECT_LT(seconds_since(start), 60) << "20 ms were given, the rest is for a busy machine";
  EXPECT_EQ(::fcntl(ends.to.get(), F_GETFL) & O_NONBLOCK, 0) << "others share the descriptor";
}

TEST_P(WriteWithin, WaitsForAReaderThatIsSlow) {
  Ends ends = GetParam()();
  std::thread writer([&] {
    EXPECT_TRUE(write_within(ends.to.get(), std::string(1 << 20, 'x'), milliseconds(60'000)));
    ends.to.reset();
  });
  size_t got = 0;
  char buffer[1000];
  for (ssize_t n = 0; (n = ::read(ends.from.get(), buffer, sizeof(buffer))) > 0;)
    got += static_cast<size_t>(n);
  writer.join();
  EXPECT_EQ(got, size_t{1} << 20);
}

TEST_P(WriteWithin, NoticesThatTheReaderIsGone) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  Ends ends = GetParam()();
  ends.from.reset();
  EXPECT_FALSE(write_within(ends.to.get(), "x", milliseconds(60'000)));
  ::signal(SIGPIPE, before);
}

INSTANTIATE_TEST_SUITE_P(All, WriteWithin, testing::Values(make_pipe, make_socket_pair));

}  // namespace
}  // namespace muster
