#include <gmock/gmock.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/strings.h"
#include "muster/trace/event_file.h"
#include "muster/trace/merge_trace.h"
#include "muster/trace/whole_events.h"

namespace muster {
namespace {

using testing::ElementsAre;

class Events : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/muster-events-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<TraceEventFile> open(int rank,
                                       int64_t unix_minus_monotonic_ns = 0,
                                       const std::string& host = "box") {
    ActivityHeader header = {};
    header.rank = rank;
    header.world_size = 4;
    header.main_thread = 100;
    header.unix_minus_monotonic_ns = unix_minus_monotonic_ns;
    host.copy(header.host, sizeof(header.host) - 1);
    return std::make_unique<TraceEventFile>(event_path(folder_, 0, rank), header);
  }
  std::vector<nlohmann::json> merged(char phase) {
    std::vector<nlohmann::json> found;
    const auto trace = nlohmann::json::parse(read_file(folder_ + "/trace.json"));
    for (const auto& event : trace["traceEvents"])
      if (event["ph"] == std::string(1, phase))
        found.push_back(event);
    return found;
  }

  std::string folder_;
};

// The ranks' files stay, so that the trace can be made again.
TEST_F(Events, ATraceThatFindsNoPlaceIsNamedAloneAndLeavesNothing) {
  open(0)->add_span("step", 1, 100, 5'000, 9'500);
  const std::string place = folder_ + "/trace.json";
  std::filesystem::create_directories(place + "/in the way");
  try {
    merge_trace(folder_);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), testing::StartsWith("cannot write '" + place + "': "));
  }
  EXPECT_THAT(paths_in(folder_), testing::UnorderedElementsAre(folder_ + "/trace", place));
}

TEST_F(Events, OfRanksAreOneTrace) {
  open(0, 1'000'000)->add_span("step", 1, 100, 5'000, 9'500);
  open(1, 3'000'000)->add_span("data \"wait\"\n", 3, 100, 2'000, 4'000);
  const auto trace = merge_trace(folder_);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->events, 2);
  EXPECT_THAT(trace->ranks, ElementsAre(0, 1));
  EXPECT_EQ(trace->world_size, 4);
  const auto spans = merged('X');
  EXPECT_EQ(spans.at(0)["ts"], 0);  // the first event
  EXPECT_EQ(spans.at(0)["dur"], 4.5);
  EXPECT_EQ(spans.at(0)["cat"], "compute");
  EXPECT_EQ(spans.at(1)["ts"], 1'997);
  EXPECT_EQ(spans.at(1)["name"], "data \"wait\"?");
  EXPECT_FALSE(merge_trace(folder_)) << "they are merged already";
}

TEST_F(Events, OfAnEarlierLaunchThoseOfThisHostAreMergedAndRemoved) {
  std::array<char, 64> host = {};
  ::gethostname(host.data(), host.size() - 1);
  open(0, 0, host.data())->add_span("step", 1, 100, 5'000, 9'500);
  open(1, 0, "other")->add_span("step", 1, 100, 5'000, 9'500);
  open(2, 0, host.data());  // without an event
  const auto trace = merge_earlier_trace(folder_);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->events, 1);
  EXPECT_EQ(trace->path, cat(folder_, "/trace.", host.data(), ".json"))
      << "the other host makes one of its own";
  EXPECT_THAT(read_file(trace->path), ::testing::HasSubstr("\"step\""));
  EXPECT_FALSE(std::filesystem::exists(event_path(folder_, 0, 0)));
  EXPECT_TRUE(std::filesystem::exists(event_path(folder_, 0, 1))) << "its host may run";
  EXPECT_FALSE(std::filesystem::exists(event_path(folder_, 0, 2)));
  EXPECT_FALSE(merge_earlier_trace(folder_));
}

TEST_F(Events, ClocksOfOtherHostsAreCorrected) {
  const auto first = open(0, 0), near = open(1, 10, "box"), far = open(2, 500'000, "other");
  first->correct_clock(0, 0);
  near->correct_clock(-10, 0);
  far->correct_clock(-400'000, 7'000);
  for (const auto* file : {&first, &near, &far})
    (*file)->add_span("step", 1, 100, 1'000, 2'000);
  EXPECT_EQ(merge_trace(folder_)->uncertainty_ns, 7'000);
  const auto spans = merged('X');
  EXPECT_EQ(spans.at(0)["ts"], 0);
  EXPECT_EQ(spans.at(1)["ts"], 0);
  EXPECT_EQ(spans.at(2)["ts"], 100);
}

TEST_F(Events, HostsThatNobodyComparedAreSaid) {
  open(0)->add_span("step", 1, 100, 1, 2);
  open(1, 0, "other")->add_span("step", 1, 100, 1, 2);
  EXPECT_EQ(merge_trace(folder_)->uncertainty_ns, -1);
}

TEST_F(Events, FilesGrowUnderSeveralThreads) {
  constexpr int kThreads = 4;
  constexpr int64_t kEach = 20'000;  // together more than two chunks
  const auto file = open(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 1; i <= kEach; ++i)
        file->add_span("short", 0, static_cast<uint32_t>(t), i, i + 1);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(merge_trace(folder_)->events, kThreads * kEach);
  std::map<int64_t, int64_t> of_thread;
  for (const auto& span : merged('X'))
    ++of_thread[span["tid"].get<int64_t>()];
  for (int t = 0; t < kThreads; ++t)
    EXPECT_EQ(of_thread[t], kEach);
}

TEST_F(Events, CallsBeginAndEndBesideThreads) {
  ActivityCall call = {};
  call.begin_ns = 1'000;
  call.sequence = 41;
  call.bytes = 64;
  call.peer = -1;
  call.thread = 7;
  std::string("f32[16]").copy(call.what, sizeof(call.what));
  std::string("all_reduce").copy(call.operation, sizeof(call.operation));
  std::string("world").copy(call.group, sizeof(call.group));
  open(0)->add_call(call, 3'000);
  merge_trace(folder_);
  const auto begin = merged('b').at(0), end = merged('e').at(0);
  EXPECT_EQ(begin["args"]["what"], "f32[16] #41 world");
  EXPECT_EQ(begin["args"]["bytes"], 64);
  EXPECT_EQ(begin["id2"], end["id2"]);
  EXPECT_EQ(end["ts"], 2);
}

// `muster report --trace` looks while the rank writes. A copy of memory has its bytes in any order:
// here it has the kind of the second event, which is written last, and not the rest.
TEST_F(Events, OfARankThatRunsAreWhole) {
  const uint32_t span = static_cast<uint32_t>(EventKind::span);
  TraceEvent whole = {};
  whole.begin_ns = 1'000;
  whole.end_ns = 2'000;
  whole.kind = span;
  TraceEvent torn = {};
  torn.kind = span;
  const TraceEvent not_there = {};
  int reads = 0;
  const auto read = [&](std::span<TraceEvent> events, size_t number) {
    if (number != 0)
      return size_t{0};
    const auto seen =
        ++reads == 1 ? std::array{whole, torn, not_there} : std::array{whole, whole, torn};
    std::ranges::copy(seen, events.begin());
    return seen.size();
  };
  std::vector<int64_t> begins;
  for_each_whole_event(read, [&](const TraceEvent& event) { begins.push_back(event.begin_ns); });
  EXPECT_THAT(begins, ElementsAre(1'000, 1'000));
}

// What a stranger, or a full disk, has left of a file.
TEST_F(Events, FilesThatAreNoneAreLeftOut) {
  open(0)->add_span("step", 1, 100, 1, 2);
  std::ofstream(event_path(folder_, 0, 1)) << "notes";
  std::ofstream(event_path(folder_, 0, 2)) << std::string(10'000, '\xff');
  {
    const auto cut = open(3);
    cut->add_span("step", 1, 100, INT64_MAX, INT64_MIN);
    cut->add_span("step", 77, 100, INT64_MIN, INT64_MAX);
  }
  std::filesystem::resize_file(event_path(folder_, 0, 3),
                               sizeof(EventHeader) + 2 * sizeof(TraceEvent) + 5);
  const auto trace = merge_trace(folder_);
  EXPECT_THAT(trace->ranks, ElementsAre(0, 3));
  EXPECT_EQ(trace->events, 3);
  EXPECT_EQ(merged('X').size(), 3U);  // it is JSON
}

TEST_F(Events, NothingTracedIsNoTrace) {
  EXPECT_FALSE(merge_trace(folder_));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/trace.json"));
}

}  // namespace
}  // namespace muster
