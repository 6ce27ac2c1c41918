#include "muster/shm/end_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

#include "muster/base/error.h"

namespace muster::shm {
namespace {

// A process that ends when it is told to.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;)
        ::pause();
    }
  }
  ~Sleeper() { end(); }
  pid_t pid() const { return pid_; }
  void end() {
    if (std::exchange(ended_, true))
      return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
  bool ended_ = false;
};

constexpr std::chrono::seconds kAtOnce{20};  // on a busy machine

TEST(EndWatch, TellsAllWatchersOfAProcess) {
  EndWatch watch;
  Sleeper sleeper;
  std::promise<void> first, second;
  ASSERT_TRUE(watch.watch_process(sleeper.pid(), [&] { first.set_value(); }));
  ASSERT_TRUE(watch.watch_process(sleeper.pid(), [&] { second.set_value(); }));
  sleeper.end();
  EXPECT_EQ(first.get_future().wait_for(kAtOnce), std::future_status::ready);
  EXPECT_EQ(second.get_future().wait_for(kAtOnce), std::future_status::ready);
}

TEST(EndWatch, TellsOfAProcessThatHasEndedBefore) {
  EndWatch watch;
  Sleeper sleeper;
  sleeper.end();
  bool told = false;
  EXPECT_TRUE(watch.watch_process(sleeper.pid(), [&] { told = true; }));
  EXPECT_TRUE(told);
}

TEST(EndWatch, WhoHasForgottenIsNotTold) {
  EndWatch watch;
  Sleeper sleeper;
  std::promise<void> told;
  const auto forgotten = watch.watch_process(sleeper.pid(), [] { FAIL() << "told"; });
  ASSERT_TRUE(forgotten);
  ASSERT_TRUE(watch.watch_process(sleeper.pid(), [&] { told.set_value(); }));
  watch.forget(*forgotten);
  sleeper.end();
  EXPECT_EQ(told.get_future().wait_for(kAtOnce), std::future_status::ready);
}

TEST(EndWatch, TellsOfAConnectionThatCloses) {
  EndWatch watch;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::promise<void> told;
  const auto watcher = watch.watch_connection(ends[0], [&] { told.set_value(); });
  ::close(ends[1]);
  EXPECT_EQ(told.get_future().wait_for(kAtOnce), std::future_status::ready);
  watch.forget(watcher);
  ::close(ends[0]);
}

TEST(EndWatch, AForkedChildLeavesItsParentsAlone) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer ends a forked child that starts a thread";
#endif
  Sleeper sleeper;
  auto watch = EndWatch::of_this_process();
  std::promise<void> told;
  const auto watcher = watch->watch_process(sleeper.pid(), [&] { told.set_value(); });
  ASSERT_TRUE(watcher);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const auto own = EndWatch::of_this_process();
    if (own == watch)
      ::_exit(2);
    watch->forget(*watcher);
    watch.reset();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  sleeper.end();
  EXPECT_EQ(told.get_future().wait_for(kAtOnce), std::future_status::ready);
}

TEST(EndWatch, WithoutADescriptorThatIsAnError) {
  EndWatch watch;
  Sleeper sleeper;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  ErrorCode code{};
  try {
    watch.watch_process(sleeper.pid(), [] {});
  } catch (const Error& error) {
    code = error.code();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(code, ErrorCode::unavailable);
}

}  // namespace
}  // namespace muster::shm
