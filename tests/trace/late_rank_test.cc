#include "muster/trace/late_rank.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "muster/base/strings.h"
#include "muster/trace/activity.h"
#include "muster/trace/span.h"
#include "muster/trace/stack_request.h"

namespace muster {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSecond = 1'000'000'000;

ActivityView late_view() {
  ActivityView view{.rank = 2, .world_size = 4, .main_thread = 7};
  view.threads = {{.thread = 7,
                   .name = "train",
                   .spans = {{.name = "step", .begin_ns = kSecond},
                             {.name = "tokenize", .begin_ns = 2 * kSecond}}}};
  view.calls = {{.number = 1,
                 .group = "world",
                 .operation = "all_reduce",
                 .sequence = 41,
                 .what = "f32[1000]",
                 .begin_ns = 1,
                 .end_ns = kSecond,
                 .state = CallState::ended}};
  return view;
}

TEST(LateRank, IsDescribed) {
  ActivityView view = late_view();
  EXPECT_EQ(describe_rank(view, ProcessState::alive, 23 * kSecond),
            "rank 2: in step > tokenize for 21.0s; last all_reduce #41 f32[1000], ended 22.0s ago");
  view.threads.clear();
  view.calls[0].end_ns.reset();
  view.calls[0].group = "ranks 2,3";
  EXPECT_EQ(describe_rank(view, ProcessState::stopped, 23 * kSecond),
            "rank 2: in nothing that muster knows of; under way: all_reduce #41 f32[1000] of ranks "
            "2,3 for 23.0s; "
            "its process is stopped (SIGSTOP, or a debugger)");
  view.calls.clear();
  view.closed_ns = 20 * kSecond;
  EXPECT_EQ(describe_rank(view, ProcessState::gone, 23 * kSecond),
            "rank 2: has left its function 3.0s ago; no collective yet; its process has ended");
}

// A child process that writes an activity file, and what it is asked.
class AskedRank : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/muster-late-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (child_ > 0)
      end_child();
    std::filesystem::remove_all(folder_);
  }

  void start(bool answers) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    child_ = ::fork();
    if (child_ == 0) {
      auto* const activity = new Activity(path(), {});
      if (answers)
        answer_stack_requests(*activity);
      if (in_child_)
        in_child_();
      static_cast<void>(!::write(ready[1], "x", 1));
      for (;;)
        ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  void end_child() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  std::string path() const { return activity_path(folder_, 0, 0); }

  std::string folder_;
  std::function<void()> in_child_;
  pid_t child_ = 0;
};

TEST_F(AskedRank, SaysItsStack) {
  start(true);
  for (int i = 0; i < 2; ++i) {
    const std::string stack =
        stack_of_rank(read_activity(path()), path(), std::chrono::seconds(30));
    EXPECT_THAT(stack, HasSubstr("#0 "));
    EXPECT_THAT(stack, HasSubstr("AskedRank"));  // the function that forked
    EXPECT_THAT(stack, ContainsRegex(" main [^\n]*$"));
  }
}

std::atomic<int> g_threads_there = 0;

[[noreturn]] void stay() {
  ++g_threads_there;
  for (;;)
    ::pause();
}

// As LibTorch's function in which a thread waits for work.
struct ReadyQueue {
  [[gnu::noinline]] static void pop() { stay(); }
};

[[gnu::noinline]] void hook_that_hangs() {
  stay();
}

TEST_F(AskedRank, SaysWhereABackwardIsThatItsMainThreadWaitsFor) {
  in_child_ = [] {
    const auto start_thread = [](const char* name, void (*function)()) {
      std::thread([=] {
        ::pthread_setname_np(::pthread_self(), name);
        function();
      }).detach();
    };
    start_thread("pt_autograd_0", hook_that_hangs);
    start_thread("pt_autograd_1", ReadyQueue::pop);
    start_thread("another", hook_that_hangs);
    while (g_threads_there < 3)
      std::this_thread::yield();
  };
  start(true);
  const std::string stack = stack_of_rank(read_activity(path()), path(), std::chrono::seconds(30));
  EXPECT_THAT(stack, HasSubstr("AskedRank"));
  EXPECT_THAT(
      stack,
      ContainsRegex("\nthread pt_autograd_0:\n( +#[^\n]*\n)* +#[0-9]+ [^\n]*hook_that_hangs"));
  EXPECT_THAT(stack, Not(HasSubstr("pt_autograd_1")));
  EXPECT_THAT(stack, Not(HasSubstr("another")));
}

TEST_F(AskedRank, IsNotAskedWithoutAHandler) {
  start(false);
  EXPECT_EQ(stack_of_rank(read_activity(path()), path(), std::chrono::seconds(1)), "");
  EXPECT_EQ(process_state(read_activity(path())), ProcessState::alive);
}

TEST_F(AskedRank, IsStoppedOrGone) {
  start(true);
  ::kill(child_, SIGSTOP);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &info, WSTOPPED | WNOWAIT), 0);
  const ActivityView view = read_activity(path());
  EXPECT_EQ(process_state(view), ProcessState::stopped);
  EXPECT_EQ(stack_of_rank(view, path(), std::chrono::seconds(1)), "");
  end_child();
  EXPECT_EQ(process_state(view), ProcessState::gone);
  EXPECT_EQ(stack_of_rank(view, path(), std::chrono::seconds(1)), "");
}

// Another process with that number is never asked: the signal would end it.
TEST_F(AskedRank, ANumberThatIsAnothersNow) {
  start(true);
  ActivityView view = read_activity(path());
  view.start_ticks += 1;
  EXPECT_EQ(process_state(view), ProcessState::gone);
  EXPECT_EQ(stack_of_rank(view, path(), std::chrono::seconds(1)), "");
  view = read_activity(path());
  view.host = "elsewhere";
  EXPECT_EQ(process_state(view), ProcessState::unknown);
}

}  // namespace
}  // namespace muster
