// A GPU's operation that a dead rank will never come to. Nobody waits for it on the host.
#include "muster/comm/late_watch.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <future>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/comm/call/rank_processes.h"

namespace muster {
namespace {

class NeverOver : public c10d::Work {
 public:
  bool isCompleted() override { return false; }
};

std::shared_ptr<Work::State> operation_of_gpu(std::vector<int> ranks) {
  auto state = std::make_shared<Work::State>();
  state->operation = "all_reduce";
  state->sequence = 12;
  state->names = std::make_shared<const RankNames>(RankNames{.ranks = std::move(ranks), .size = 3});
  state->work = c10::make_intrusive<NeverOver>();
  state->deadline = Deadline(std::chrono::minutes(30));
  return state;
}

// Killed, and waited for, when it goes.
class Process {
 public:
  Process() : pid_(::fork()) {
    while (pid_ == 0)
      ::pause();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() { kill(); }
  int pid() const { return pid_; }
  void kill() {
    if (pid_ > 0)
      ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  int pid_;
};

class LateWatchTest : public ::testing::Test {
 protected:
  ~LateWatchTest() override { remember_rank_processes({}); }

  std::promise<std::string> said_;
  std::future<std::string> said_in_time_ = said_.get_future();
  Process one_, two_;
};

TEST_F(LateWatchTest, AnEndedRankOfTheGroupIsNamedWithinSeconds) {
  const int pid = one_.pid();
  remember_rank_processes({{.rank = 1, .pid = pid}, {.rank = 2, .pid = two_.pid()}});
  LateWatch watch([&](const std::string& what) { said_.set_value(what); });
  watch.add_of_gpu(operation_of_gpu({0, 1}));
  one_.kill();
  ASSERT_EQ(said_in_time_.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(said_in_time_.get(),
            cat("all_reduce #12 on rank 0 of 3: rank 1 (process ", pid, ") has ended"));
}

TEST_F(LateWatchTest, ARankOutsideOfTheGroupMayEnd) {
  remember_rank_processes({{.rank = 1, .pid = one_.pid()}, {.rank = 2, .pid = two_.pid()}});
  LateWatch watch([&](const std::string& what) { said_.set_value(what); });
  watch.add_of_gpu(operation_of_gpu({0, 2}));
  one_.kill();
  EXPECT_EQ(said_in_time_.wait_for(std::chrono::seconds(5)), std::future_status::timeout);
}

TEST_F(LateWatchTest, ARankThatMakesADifferentCallIsShown) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::chrono::seconds timeout(2);
  Agreement other(store, 1, 2, false);
  other.look_again(12, "barrier");
  auto state = operation_of_gpu({0, 1});
  state->agreement = std::make_shared<Agreement>(store, 0, 2, false);
  state->signature = "all_reduce sum Float [4]";
  state->deadline = Deadline(timeout);
  LateWatch watch([&](const std::string& what) { said_.set_value(what); });
  watch.add_of_gpu(state);
  ASSERT_EQ(said_in_time_.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_THAT(said_in_time_.get(),
              ::testing::AllOf(::testing::HasSubstr("barrier"),
                               ::testing::HasSubstr("all_reduce sum Float [4]")));
}

TEST_F(LateWatchTest, OfAGpusOperationsTheNewestAloneIsKept) {
  LateWatch watch;
  auto first = operation_of_gpu({0, 1});
  const std::weak_ptr<Work::State> seen = first;
  watch.add_of_gpu(std::move(first));
  EXPECT_FALSE(seen.expired());
  watch.add_of_gpu(operation_of_gpu({0, 1}));
  const Deadline deadline(std::chrono::seconds(20));
  while (!seen.expired() && !deadline.passed())
    std::this_thread::yield();
  EXPECT_TRUE(seen.expired());
}

TEST_F(LateWatchTest, TheRankThatDoesNotWaitIsNamed) {
  static std::promise<std::string> warned;
  auto in_time = warned.get_future();
  set_warning([](const std::string& text) { warned.set_value(text); }, "a setting");
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::chrono::seconds timeout(4);
  const auto waiting = [&](int rank, int64_t sequence) {
    auto state = operation_of_gpu({0, 1, 2});
    state->agreement = std::make_shared<Agreement>(store, rank, 3, false);
    state->signature = "all_reduce sum Float [4]";
    state->sequence = sequence;
    state->deadline = Deadline(timeout);
    return state;
  };
  LateWatch first, third;
  third.add_of_gpu(waiting(2, 12));  // which has begun fewer, and waits all the same
  first.add_of_gpu(waiting(0, 15));
  ASSERT_EQ(in_time.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_THAT(in_time.get(), ::testing::HasSubstr("for rank(s) 1; rank(s) 0, 2 have come"));
  set_warning([](const std::string&) {}, "a setting");
}

}  // namespace
}  // namespace muster
