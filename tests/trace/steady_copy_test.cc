// What readers see of a file while its rank goes on writing.
#include "muster/trace/steady_copy.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/activity_layout.h"
#include "muster/trace/activity_times.h"
#include "muster/trace/span.h"
#include "tests/trace/activity_fixture.h"

namespace muster {
namespace {

using testing::SizeIs;

// Calls `look` so often, in a thread of its own, while this one calls `write`.
template <class Look, class Write>
void look_while_writing(int looks, const Look& look, const Write& write) {
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    for (int i = 0; i < looks; ++i)
      look();
    is_over = true;
  });
  while (!is_over)
    write();
  reader.join();
}

void pass(int64_t nanoseconds) {
  const int64_t until = activity_now() + nanoseconds;
  while (activity_now() < until) {
  }
}

// A record changes ten times in a step of a millisecond, and the file is read for a tenth of one.
TEST_F(ActivityTest, WhatTheMainThreadDoesIsInEveryLook) {
  const auto activity = open();
  constexpr int kLooks = 300;
  int in_step = 0, with_last_call = 0;
  {
    const Span step("step", Category::compute);
    activity->end_call(activity->begin_call(call_facts(0, {1})), CallState::ended);
    look_while_writing(
        kLooks,
        [&] {
          const ActivityView view = view_of(*activity);
          in_step += view.main() != nullptr ? 1 : 0;
          const bool has_last =
              !view.calls.empty() && view.calls.back().number + 2 >= view.num_calls;
          with_last_call += has_last ? 1 : 0;
        },
        [&] {
          const Span forward("forward");
          const uint64_t number = activity->begin_call(call_facts(1, {10}));
          std::this_thread::sleep_for(std::chrono::microseconds(50));
          activity->end_call(number, CallState::ended);
        });
  }
  EXPECT_EQ(in_step, kLooks);
  EXPECT_EQ(with_last_call, kLooks);
}

// A reader beside a writer of calls and two of spans sees whole records alone.
TEST_F(ActivityTest, RecordsAreWholeWhileTheyChange) {
  const auto activity = open();
  std::atomic<bool> is_over = false;
  std::vector<std::thread> writers;
  for (const char* name : {"aaaaaaaa", "bbbbbbbb"}) {
    writers.emplace_back([&, name] {
      while (!is_over) {
        const Span span(name);
        pass(2'000);
      }
    });
  }
  int whole_calls = 0, torn_calls = 0, whole_spans = 0, torn_spans = 0;
  constexpr int kLooks = 50;
  int64_t i = 0;
  look_while_writing(
      kLooks,
      [&] {
        const ActivityView view = view_of(*activity);
        for (const CallView& call : view.calls) {
          const bool is_whole =
              call.bytes == call.sequence && call.what == cat("f32[", call.sequence, "]");
          ++(is_whole ? whole_calls : torn_calls);
        }
        for (const ThreadView& thread : view.threads) {
          const std::string& name = thread.spans[0].name;
          ++(name == "aaaaaaaa" || name == "bbbbbbbb" ? whole_spans : torn_spans);
        }
      },
      [&] {
        CallFacts facts = call_facts(++i, {});
        facts.sizes = &i;
        facts.dimensions = 1;
        facts.bytes = i;
        activity->end_call(activity->begin_call(facts), CallState::ended);
      });
  is_over = true;
  for (std::thread& writer : writers)
    writer.join();
  EXPECT_EQ(torn_calls, 0);
  EXPECT_EQ(torn_spans, 0);
  EXPECT_GT(whole_calls, kLooks);
  EXPECT_GT(whole_spans, kLooks / 10);
}

int64_t sum_of(const std::array<int64_t, kActivityCategories>& times) {
  return std::accumulate(times.begin(), times.end(), int64_t{0});
}

TEST_F(ActivityTest, EachMomentCountsOnceWhileTheCategoryChanges) {
  const auto activity = open();
  constexpr int kLooks = 300;
  int64_t wrong = 0;
  look_while_writing(
      kLooks,
      [&] {
        const ActivityView view = view_of(*activity);
        const int64_t now = activity_now();
        wrong += sum_of(view.totals_at(now)) == now - view.opened_ns ? 0 : 1;
        const int64_t before = activity_now() - view.opened_ns;
        const int64_t own = sum_of(activity->totals());
        wrong += before <= own && own <= activity_now() - view.opened_ns ? 0 : 1;
      },
      [] { const Span wait("data wait", Category::data); });
  EXPECT_EQ(wrong, 0);
}

// The file as it is when the rank is killed between two words that it writes.
class TornFile {
 public:
  explicit TornFile(const Activity& activity) : bytes_(read_file(activity.path())) {}

  template <class Change>
  ActivityView with(const Change& change) {
    auto file = std::make_unique<ActivityLayout>();
    std::memcpy(file.get(), bytes_.data(), sizeof(ActivityLayout));
    change(*file);
    std::memcpy(bytes_.data(), file.get(), sizeof(ActivityLayout));
    return parse_activity(bytes_, "torn");
  }

 private:
  std::string bytes_;
};

TEST_F(ActivityTest, ACallWithHalfAnEndIsUnderWay) {
  const auto activity = open();
  activity->begin_call(call_facts(7, {1}));
  const auto ended_without_state = TornFile(*activity).with(
      [](ActivityLayout& file) { file.ring[0].end_ns = file.ring[0].begin_ns + 5; });
  const auto state_without_end = TornFile(*activity).with(
      [](ActivityLayout& file) { file.ring[0].state = static_cast<uint32_t>(CallState::failed); });
  for (const ActivityView& view : {ended_without_state, state_without_end}) {
    ASSERT_THAT(view.calls, SizeIs(1));
    EXPECT_EQ(view.calls[0].state, CallState::under_way);
    EXPECT_FALSE(view.calls[0].end_ns);
  }
}

TEST_F(ActivityTest, TimeThatIsInATotalAlreadyDoesNotCountAgain) {
  const auto activity = open();
  const Span wait("data wait", Category::data);
  const auto view = TornFile(*activity).with(
      [](ActivityLayout& file) { file.header.totals_ns[index_of(Category::data)] += 7'000; });
  const int64_t now = activity_now() + 1'000'000;
  EXPECT_EQ(sum_of(view.totals_at(now)), now - view.opened_ns);
}

TEST_F(ActivityTest, ARecordThatIsNeverClosedIsLeftOut) {
  const auto activity = open();
  const Span step("step");
  activity->begin_call(call_facts(7, {1}));
  activity->begin_call(call_facts(8, {1}));
  std::string bytes = read_file(activity->path());
  for (const size_t tail : {offsetof(ActivityLayout, threads) + offsetof(ActivityThread, tail),
                            offsetof(ActivityLayout, ring) + offsetof(ActivityCall, tail)})
    ++bytes[tail];
  const std::string path = folder_ + "/torn";
  write_file(path, bytes);
  const ActivityView view = read_activity(path);
  EXPECT_EQ(view.main(), nullptr);
  ASSERT_THAT(view.calls, SizeIs(1));
  EXPECT_EQ(view.calls[0].sequence, 8);
}

// Whoever finds no record of its own leaves the others' alone, which their threads write to all the
// time: it does not even see that one has become free behind muster's back.
TEST_F(ActivityTest, AThreadWithoutARecordTouchesNoneOfTheOthers) {
  const auto activity = open();
  std::latch all_in(kActivityThreads), may_go(1);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kActivityThreads; ++i) {
    threads.emplace_back([&] {
      const Span span("held");
      all_in.count_down();
      may_go.wait();
    });
  }
  all_in.wait();
  const Fd file(::open(activity->path().c_str(), O_RDWR | O_CLOEXEC));
  const uint32_t nobody = 0;
  const off_t owner = offsetof(ActivityLayout, threads) + offsetof(ActivityThread, owner);
  ASSERT_EQ(::pwrite(file.get(), &nobody, sizeof(nobody), owner), ssize_t{sizeof(nobody)});
  {
    const Span span("one too many");
    for (const ThreadView& thread : view_of(*activity).threads)
      EXPECT_EQ(thread.spans[0].name, "held");
  }
  may_go.count_down();
  for (std::thread& thread : threads)
    thread.join();
  const Span span("now there is room");
  EXPECT_THAT(view_of(*activity).threads, SizeIs(1));
}

}  // namespace
}  // namespace muster
