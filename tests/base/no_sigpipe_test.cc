#include "muster/base/no_sigpipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

#include "muster/base/fd.h"

namespace muster {
namespace {

Fd pipe_without_reader() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  ::close(ends[0]);
  return Fd(ends[1]);
}

bool is_blocked() {
  sigset_t now;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &now);
  return sigismember(&now, SIGPIPE) == 1;
}

TEST(NoSigpipe, AWriteFailsAndTheProcessLivesOn) {
  const Fd pipe = pipe_without_reader();
  {
    const NoSigpipe outer;
    {
      const NoSigpipe inner;
      EXPECT_EQ(::write(pipe.get(), "x", 1), -1);
      EXPECT_EQ(errno, EPIPE);
    }
    EXPECT_TRUE(is_blocked());
  }
  EXPECT_FALSE(is_blocked());
}

TEST(NoSigpipe, AThreadThatIsMadeMeanwhileStaysProtected) {
  const Fd pipe = pipe_without_reader();
  std::thread thread;
  {
    const NoSigpipe guard;
    thread = std::thread([&] { EXPECT_EQ(::write(pipe.get(), "x", 1), -1); });
  }
  thread.join();
}

TEST(NoSigpipeDeathTest, OutsideOfItTheSignalIsAsBefore) {
  const Fd pipe = pipe_without_reader();
  const auto write_after_guard = [&] {
    {
      const NoSigpipe guard;
    }
    (void)!::write(pipe.get(), "x", 1);
  };
  EXPECT_EXIT(write_after_guard(), testing::KilledBySignal(SIGPIPE), "");
}

}  // namespace
}  // namespace muster
