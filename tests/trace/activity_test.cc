#include "muster/trace/activity.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/read_activity.h"
#include "muster/trace/span.h"
#include "tests/trace/activity_fixture.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST_F(ActivityTest, SaysWhoseItIs) {
  const auto activity = open(2, 4);
  EXPECT_EQ(view_of(*activity).libtorch, "") << "nobody has told";
  activity->set_software(
      {.libtorch = "2.15.0", .backend = "nccl", .device_name = std::string(100, 'n')});
  const ActivityView view = view_of(*activity);
  EXPECT_EQ(view.libtorch, "2.15.0");
  EXPECT_EQ(view.backend, "nccl");
  EXPECT_EQ(view.device_name, std::string(63, 'n')) << "cut";
  EXPECT_EQ(view.rank, 2);
  EXPECT_EQ(view.world_size, 4);
  EXPECT_EQ(view.pid, ::getpid());
  EXPECT_EQ(view.device, "cpu:0");
  EXPECT_FALSE(view.host.empty());
  EXPECT_FALSE(view.loss);
  EXPECT_FALSE(view.closed_ns);
  EXPECT_EQ(view.main(), nullptr);
  const int64_t unix_now = nanoseconds_of(CLOCK_REALTIME);
  EXPECT_NEAR(static_cast<double>(view.opened_ns + view.unix_minus_monotonic_ns),
              static_cast<double>(unix_now),
              60e9);
}

TEST_F(ActivityTest, ALossThatIsNoNumberIsTold) {
  const auto activity = open();
  for (const double loss : {std::nan(""), -std::nan("7")}) {
    note_loss(loss);
    ASSERT_TRUE(view_of(*activity).loss);
    EXPECT_TRUE(std::isnan(*view_of(*activity).loss));
  }
  note_loss(-HUGE_VAL);
  EXPECT_EQ(view_of(*activity).loss, -HUGE_VAL);
}

TEST_F(ActivityTest, WithoutAFileNothingHappens) {
  Activity::set(nullptr);
  const Span span("step", Category::compute);
  note_step(1);
  note_loss(2);
}

TEST_F(ActivityTest, NamesTheSpansThatAThreadIsIn) {
  const auto activity = open();
  {
    const Span step("step", Category::compute);
    const Span own("tokenize");
    const ActivityView view = view_of(*activity);
    ASSERT_NE(view.main(), nullptr);
    ASSERT_THAT(view.main()->spans, SizeIs(2));
    EXPECT_EQ(view.main()->spans[0].name, "step");
    EXPECT_EQ(view.main()->spans[1].name, "tokenize");
    EXPECT_EQ(view.main()->spans[1].category, Category::compute);  // that of what it is within
    EXPECT_LE(view.main()->spans[0].begin_ns, view.main()->spans[1].begin_ns);
  }
  EXPECT_THAT(view_of(*activity).threads, IsEmpty());
}

TEST_F(ActivityTest, DeepSpansAreCounted) {
  const auto activity = open();
  std::vector<std::unique_ptr<Span>> spans;
  for (size_t i = 0; i < kActivityDepth + 3; ++i)
    spans.push_back(std::make_unique<Span>(cat(i).c_str()));
  const ActivityView view = view_of(*activity);
  EXPECT_THAT(view.main()->spans, SizeIs(kActivityDepth));
  EXPECT_EQ(view.main()->deeper, 3);
  while (!spans.empty())
    spans.pop_back();
  EXPECT_THAT(view_of(*activity).threads, IsEmpty());
}

TEST_F(ActivityTest, TimeIsCountedByTheInnermostCategory) {
  const auto activity = open();
  const auto pass = [](int64_t nanoseconds) {
    const int64_t until = activity_now() + nanoseconds;
    while (activity_now() < until) {
    }
  };
  const int64_t began = activity_now();
  {
    const Span step("step", Category::compute);
    pass(2'000'000);
    {
      const Span wait("wait", Category::communication);
      pass(3'000'000);
    }
    pass(1'000'000);
  }
  const ActivityView view = view_of(*activity);
  const int64_t whole = activity_now() - began;
  const auto compute = view.totals_ns[static_cast<size_t>(Category::compute)];
  const auto wait = view.totals_ns[static_cast<size_t>(Category::communication)];
  EXPECT_GE(compute, 3'000'000);
  EXPECT_GE(wait, 3'000'000);
  EXPECT_LE(compute + wait, whole);
  EXPECT_EQ(view.category, Category::other);
}

TEST_F(ActivityTest, WhatTheRankIsInCountsToo) {
  const auto activity = open();
  const Span wait("data wait", Category::data);
  const ActivityView view = view_of(*activity);
  EXPECT_EQ(view.category, Category::data);
  const auto at = view.totals_at(view.category_since_ns + 5);
  EXPECT_EQ(at[static_cast<size_t>(Category::data)], 5);
}

TEST_F(ActivityTest, OtherThreadsHaveSpansButNoTotals) {
  const auto activity = open();
  ActivityView inside;
  std::thread([&] {
    const Span span("worker", Category::data);
    inside = view_of(*activity);
  }).join();
  ASSERT_THAT(inside.threads, SizeIs(1));
  EXPECT_EQ(inside.threads[0].spans[0].name, "worker");
  EXPECT_EQ(inside.main(), nullptr);
  EXPECT_EQ(inside.category, Category::other);
}

TEST_F(ActivityTest, PlacesOfThreadsThatHaveEndedAreUsedAgain) {
  const auto activity = open();
  bool seen = true;
  for (size_t i = 0; i < 4 * kActivityThreads; ++i) {
    std::thread([&] {
      const Span span("short");
      seen = seen && view_of(*activity).threads.size() == 1;
    }).join();
  }
  EXPECT_TRUE(seen);
}

TEST_F(ActivityTest, CallsBeginAndEnd) {
  const auto activity = open();
  const uint64_t first = activity->begin_call(call_facts(7, {10, 100}));
  const uint64_t second = activity->begin_call({.group = "world", .operation = "send", .peer = 3});
  activity->end_call(first, CallState::failed);
  const ActivityView view = view_of(*activity);
  EXPECT_EQ(view.num_calls, 2U);
  ASSERT_THAT(view.calls, SizeIs(2));
  EXPECT_EQ(view.calls[0].text(), "all_reduce #7 f32[10, 100]");
  EXPECT_EQ(view.calls[0].state, CallState::failed);
  EXPECT_GE(*view.calls[0].end_ns, view.calls[0].begin_ns);
  EXPECT_EQ(view.calls[1].text(), "send to 3");
  EXPECT_FALSE(view.calls[1].end_ns);
  EXPECT_EQ(view.calls[1].number, second);
}

TEST_F(ActivityTest, TheLast1024CallsAreKept) {
  const auto activity = open();
  uint64_t first = 0;
  for (int64_t i = 0; i < 3000; ++i) {
    const uint64_t number = activity->begin_call(call_facts(i, {i}));
    if (i == 0)
      first = number;
  }
  activity->end_call(first, CallState::ended);  // its place is another's
  const ActivityView view = view_of(*activity);
  ASSERT_THAT(view.calls, SizeIs(kActivityCalls));
  EXPECT_EQ(view.calls.front().sequence, 3000 - 1024);
  EXPECT_EQ(view.calls.back().sequence, 2999);
  EXPECT_TRUE(
      std::none_of(view.calls.begin(), view.calls.end(), [](const auto& c) { return c.end_ns; }));
}

TEST_F(ActivityTest, IsWholeAfterSigkill) {
  const std::string path = activity_path(folder_, 0, 0);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto* const activity = new Activity(path, {});
    Activity::set(activity);
    const Span span("data wait", Category::data);
    activity->begin_call(call_facts(41, {1000}));
    activity->note_step(12);
    static_cast<void>(::write(ready[1], "x", 1));
    for (;;)
      ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  const ActivityView view = read_activity(path);
  EXPECT_EQ(view.pid, child);
  EXPECT_EQ(view.step, 12);
  EXPECT_EQ(view.main()->spans[0].name, "data wait");
  EXPECT_EQ(view.calls.at(0).text(), "all_reduce #41 f32[1000]");
}

TEST_F(ActivityTest, OneProcessWrites) {
  const auto activity = open();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const Activity second(activity->path(), {});
      ::_exit(1);
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::failed_precondition ? 0 : 2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(view_of(*activity).pid, ::getpid());
}

TEST_F(ActivityTest, WhatAnEarlierJobHasLeftIsGone) {
  {
    const auto earlier = open();
    earlier->begin_call(call_facts(1, {1}));
    earlier->note_step(9);
  }
  const auto activity = open();
  EXPECT_THAT(view_of(*activity).calls, IsEmpty());
  EXPECT_EQ(view_of(*activity).step, 0);
}

TEST_F(ActivityTest, TellsStepSamplesAndLoss) {
  const auto activity = open();
  note_step(5);
  note_samples(32);
  note_samples(32);
  note_loss(0.5);
  activity->close();
  const ActivityView view = view_of(*activity);
  EXPECT_EQ(view.step, 5);
  EXPECT_EQ(view.steps, 1);
  EXPECT_EQ(view.samples, 64);
  EXPECT_EQ(view.loss, 0.5);
  EXPECT_TRUE(view.closed_ns);
}

TEST_F(ActivityTest, FilesOfTheLastAttemptByRank) {
  EXPECT_THAT(activity_files(folder_), IsEmpty());
  for (const char* name : {"0/0", "2/1", "2/10", "2/9", "2/notes", "2/01", "old/0"}) {
    std::filesystem::create_directories(std::filesystem::path(folder_) / "activity" / name);
  }
  std::vector<int> ranks;
  for (const ActivityFile& file : activity_files(folder_)) {
    EXPECT_EQ(file.attempt, 2);
    EXPECT_EQ(file.path, activity_path(folder_, 2, file.rank));
    ranks.push_back(file.rank);
  }
  EXPECT_THAT(ranks, ElementsAre(1, 9, 10));
  EXPECT_THAT(activity_files(folder_, 0), SizeIs(1));
  EXPECT_THAT(activity_files(folder_, 1), IsEmpty());
}

TEST_F(ActivityTest, WhatAnEarlierJobHasLeftInTheFolderGoes) {
  open(0);
  const auto living = open(1, 2);
  open(2, 3);
  {
    std::fstream other(activity_path(folder_, 0, 2),
                       std::ios::in | std::ios::out | std::ios::binary);
    other.seekp(offsetof(ActivityHeader, host));
    other << "elsewhere" << '\0';
  }
  std::filesystem::create_directories(folder_ + "/activity/1");
  std::ofstream(activity_path(folder_, 1, 0)) << "notes";
  remove_earlier_activity(folder_);
  EXPECT_FALSE(std::filesystem::exists(activity_path(folder_, 0, 0)));
  EXPECT_TRUE(std::filesystem::exists(activity_path(folder_, 0, 1))) << "a process writes to it";
  EXPECT_TRUE(std::filesystem::exists(activity_path(folder_, 0, 2))) << "another host's";
  EXPECT_TRUE(std::filesystem::exists(activity_path(folder_, 1, 0))) << "no activity file";
  remove_earlier_activity(folder_ + "/nowhere");
}

std::string error_of(const std::string& bytes) {
  try {
    parse_activity(bytes, "x");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "";
}

TEST_F(ActivityTest, WhatIsNoActivityFileIsRefused) {
  const auto activity = open();
  const std::string good = read_file(activity->path());
  EXPECT_EQ(error_of(good), "");
  EXPECT_THAT(error_of(""), HasSubstr(cat("expected ", good.size(), " bytes, got 0;")));
  EXPECT_THAT(error_of(good.substr(0, good.size() - 1)), HasSubstr("bytes, got"));
  EXPECT_THAT(error_of(std::string(good.size(), '\xff')), HasSubstr("to begin with 'mustract'"));
  std::string other = good;
  ++other[offsetof(ActivityHeader, version)];
  EXPECT_THAT(error_of(other),
              HasSubstr(cat(
                  "expected version ", kActivityVersion, ", got version ", kActivityVersion + 1)));
  other = good;
  other[offsetof(ActivityHeader, rank)] = 1;
  EXPECT_THAT(error_of(other), HasSubstr("a rank below its world size, got rank 1 of 1"));
}

}  // namespace
}  // namespace muster
