#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/strings.h"
#include "muster/report/top.h"
#include "muster/report/top_text.h"
#include "muster/trace/activity.h"
#include "muster/trace/activity_clock.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

class TopSamplerTest : public testing::Test {
 protected:
  TopSamplerTest() { std::filesystem::create_directories(folder_.path() + "/activity/0"); }

  // The clock of activity files goes on, so that a step takes some time.
  static void pass_time() {
    const int64_t from = activity_now();
    while (activity_now() - from < 2'000'000) {
    }
  }

  const ScratchFolder folder_;
};

TEST_F(TopSamplerTest, AStepIsTimedFromTheLastLookOn) {
  Activity rank(activity_path(folder_.path(), 0, 0), {.rank = 0, .device = "cpu:0"});
  TopSampler sampler(folder_.path(), std::nullopt);
  EXPECT_FALSE(sampler.sample().ranks.at(0).seconds_per_step) << "no step yet";
  pass_time();
  rank.note_samples(32);
  rank.note_step(1);
  const TopView first = sampler.sample();
  EXPECT_EQ(first.ranks.at(0).step, 1);
  EXPECT_GT(first.ranks.at(0).seconds_per_step.value_or(0), 0.001)
      << "a look before the first step changes nothing";
  EXPECT_GT(first.ranks.at(0).samples_per_second.value_or(0), 0);
  for (int step = 2; step <= 5; ++step) {
    pass_time();
    rank.note_samples(32);
    rank.note_step(step);
  }
  const TopRank later = sampler.sample().ranks.at(0);
  ASSERT_TRUE(later.seconds_per_step && later.samples_per_second);
  EXPECT_NEAR(*later.samples_per_second * *later.seconds_per_step, 32, 1e-6) << "four steps of 32";
  EXPECT_EQ(sampler.sample().ranks.at(0).seconds_per_step, later.seconds_per_step)
      << "no step since: what is known";
}

TEST_F(TopSamplerTest, ALossThatIsNoNumberIsShown) {
  Activity rank(activity_path(folder_.path(), 0, 0), {.rank = 0, .device = "cpu:0"});
  Activity other(activity_path(folder_.path(), 0, 1),
                 {.rank = 1, .world_size = 2, .device = "cpu:1"});
  rank.note_loss(std::nan(""));
  other.note_loss(HUGE_VAL);
  const TopView view = TopSampler(folder_.path(), std::nullopt).sample();
  EXPECT_THAT(top_table(view), HasSubstr("NaN"));
  EXPECT_THAT(top_prometheus(view), HasSubstr("device=\"cpu:0\"} NaN\n"));
  EXPECT_THAT(top_prometheus(view), HasSubstr("device=\"cpu:1\"} +Inf\n"));
  const auto json = nlohmann::json::parse(top_json(view));  // throws where a NaN stands bare
  for (const auto& each : json.at("ranks"))
    EXPECT_TRUE(each.at("loss").is_null()) << "JSON has no such number";
}

TEST(TopText, SamplesOfAllAreThoseOfTheRanksSeen) {
  TopView view{.title = "train",
               .running = true,
               .ranks = {{.rank = 0, .host = "a", .samples_per_second = 100},
                         {.rank = 1, .host = "a", .samples_per_second = 50}}};
  EXPECT_THAT(top_table(view), HasSubstr("150 samples/s in all\n"));
  view.ranks.push_back({.rank = 2, .host = "b", .state = "not seen"});
  view.unseen_hosts = {"b"};
  EXPECT_THAT(top_table(view), HasSubstr("150 samples/s of the 2 ranks that are seen\n"));
}

TEST_F(TopSamplerTest, WhatARankIsInAndHasCalled) {
  Activity rank(activity_path(folder_.path(), 0, 3),
                {.rank = 3, .world_size = 4, .device = "cpu:0"});
  const int64_t sizes[] = {1000};
  const uint64_t ended = rank.begin_call({.group = "world",
                                          .operation = "all_reduce",
                                          .sequence = 40,
                                          .type = "f32",
                                          .sizes = sizes,
                                          .dimensions = 1});
  rank.end_call(ended, CallState::ended);
  const auto span = rank.enter("step", Category::compute, false);
  rank.begin_call({.group = "world",
                   .operation = "all_reduce",
                   .sequence = 41,
                   .type = "f32",
                   .sizes = sizes,
                   .dimensions = 1});
  TopSampler sampler(folder_.path(), std::nullopt);
  const TopRank row = sampler.sample().ranks.at(0);
  rank.leave(span);
  EXPECT_EQ(row.rank, 3);
  EXPECT_EQ(row.doing, "step > all_reduce #41 f32[1000]");
  EXPECT_EQ(row.last_call, "all_reduce #40 f32[1000]");
}

TEST(TopText, ShowsWhatIsKnownAndEscapesLabels) {
  TopView view{.title = "a\x1b[2J",
               .id = "q\"uote",
               .running = true,
               .ranks = {{.rank = 0, .host = "h\\", .state = "running"}}};
  view.unseen_hosts = {"far"};
  const std::string table = top_table(view);
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
  EXPECT_THAT(table, Not(HasSubstr("GPU")));
  EXPECT_THAT(table, HasSubstr("the ranks of far"));
  EXPECT_THAT(top_prometheus(view),
              HasSubstr(R"(muster_rank_up{run="q\"uote",rank="0",host="h\\",device=""} 1.0)"));
  EXPECT_THAT(top_prometheus(view), Not(HasSubstr("muster_rank_step")))
      << "what is not known is not there";
}

}  // namespace
}  // namespace muster
