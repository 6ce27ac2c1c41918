// Properties of the schedules, over all small sizes and random large ones.
#include "muster/parallel/pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/parallel/pipeline/message_order.h"
#include "muster/parallel/pipeline/simulation.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

struct Sizes {
  int ranks, micro_batches;
};

std::vector<Sizes> many_sizes() {
  std::vector<Sizes> all;
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (int micro_batches = 1; micro_batches <= 13; ++micro_batches)
      all.push_back({ranks, micro_batches});
  std::mt19937 random(5);
  for (int i = 0; i < 40; ++i)
    all.push_back({1 + static_cast<int>(random() % 24), 1 + static_cast<int>(random() % 90)});
  return all;
}

TEST(PipelineSchedule, EverySizeIsValidWithTheIdleTimeAndThePeakOfTheory) {
  for (const auto [p, m] : many_sizes()) {
    SCOPED_TRACE(cat(p, " ranks, ", m, " micro-batches"));
    const PipelineTimes times{.forward = 3, .backward = 5};
    for (const auto& schedule : {gpipe(p, m), one_f_one_b(p, m)}) {
      const PipelineTimeline timeline = simulate(schedule, times);
      for (const double idle : timeline.idle)
        EXPECT_EQ(idle, (p - 1) * (3 + 5)) << schedule.name;
    }
    const PipelineSchedule zb = zero_bubble(p, m);
    const double zb_idle = simulate(zb, {.forward = 1, .input_grad = 1, .weight_grad = 1}).bubble();
    if (m >= p) {
      EXPECT_EQ(zb_idle, p - 1);  // ranks - 1 times F + I - W
    }
    EXPECT_LE(zb_idle, 3 * (p - 1));  // 1F1B's
    for (int rank = 0; rank < p; ++rank) {
      EXPECT_EQ(peak_held(gpipe(p, m), rank), m);
      EXPECT_EQ(peak_held(one_f_one_b(p, m), rank), std::min(m, p - rank));
      EXPECT_EQ(peak_held(zb, rank), std::min(m, p));
    }
  }
}

TEST(PipelineSchedule, InterleavedDividesTheIdleTime) {
  for (int p = 1; p <= 6; ++p) {
    for (int rounds = 1; rounds <= 4; ++rounds) {
      for (int v = 1; v <= 4; ++v) {
        const int m = rounds * p;
        SCOPED_TRACE(cat(p, " ranks, ", m, " micro-batches, ", v, " stages a rank"));
        const PipelineSchedule schedule = interleaved(p, m, v);
        const PipelineTimeline timeline = simulate(schedule, {.forward = 1, .backward = 2});
        EXPECT_EQ(timeline.bubble(), (p - 1) * 3);  // of stages that are 1 / v as long
        for (int rank = 0; rank < p; ++rank)
          EXPECT_EQ(peak_held(schedule, rank),
                    std::min(m * v, (v - 1) * p + 2 * (p - 1 - rank) + 1));
      }
    }
  }
  EXPECT_THAT(refusal([] { interleaved(4, 6, 2); }), HasSubstr("4 ranks divide, got 6; take 8"));
}

// Gradients of a weight are added in the order of micro-batches, as one process adds them.
TEST(PipelineSchedule, BackwardsComeInTheOrderOfMicroBatches) {
  for (const auto& schedule :
       {gpipe(4, 8), one_f_one_b(4, 8), interleaved(4, 8, 3), zero_bubble(4, 8)}) {
    for (const auto& actions : schedule.actions) {
      std::vector<int> next(static_cast<size_t>(schedule.stages), 0);
      for (const PipelineAction& action : actions) {
        if (action.kind != PipelineAction::Kind::backward &&
            action.kind != PipelineAction::Kind::weight_grad)
          continue;
        EXPECT_EQ(action.micro_batch, next[static_cast<size_t>(action.stage)]++) << schedule.name;
      }
    }
  }
}

TEST(PipelineSchedule, WhatIsWrongIsNamed) {
  EXPECT_THAT(refusal([] { gpipe(0, 3); }), HasSubstr("got 0 ranks"));
  using Kind = PipelineAction::Kind;
  PipelineSchedule twice = one_f_one_b(2, 3);
  twice.actions[1].push_back({Kind::forward, 1, 2});
  EXPECT_THAT(refusal([&] { check(twice); }),
              HasSubstr("2 F, 1 B, 0 I and 0 W of micro-batch 2 at stage 1"));
  PipelineSchedule elsewhere = one_f_one_b(2, 3);
  elsewhere.actions[0][0].stage = 1;
  EXPECT_THAT(refusal([&] { check(elsewhere); }), HasSubstr("F0 of stage 1 on rank 0"));
  PipelineSchedule uneven = one_f_one_b(2, 3);
  uneven.stages = 3;
  EXPECT_THAT(refusal([&] { check(uneven); }), HasSubstr("3 stages, 2 ranks"));
  PipelineSchedule early = one_f_one_b(2, 3);
  std::swap(early.actions[0][0], early.actions[0][2]);  // B0 before F0
  EXPECT_THAT(refusal([&] { check(early); }),
              HasSubstr("wait for ever: rank 0 at B0, rank 1 at F0"));
  PipelineSchedule no_weights = zero_bubble(2, 2);
  no_weights.actions[0].pop_back();
  EXPECT_THAT(refusal([&] { check(no_weights); }),
              HasSubstr("1 I and 0 W of micro-batch 1 at stage 0"));
}

// Any swap of two neighbouring actions is either still valid or found; none ends the checker.
TEST(PipelineSchedule, ShuffledSchedulesAreValidOrRefused) {
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    PipelineSchedule schedule = i % 2 ? zero_bubble(4, 6) : interleaved(3, 6, 2);
    auto& actions = schedule.actions[random() % schedule.actions.size()];
    std::swap(actions[random() % actions.size()], actions[random() % actions.size()]);
    refused += !refusal([&] { check(schedule); }).empty();
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 300);
}

// Rows are ranks, and words are an action's letter, micro-batch and stage: "F0/2".
PipelineSchedule schedule_of(int stages, int micro_batches, const std::vector<std::string>& rows) {
  PipelineSchedule schedule{.name = "own",
                            .ranks = static_cast<int>(rows.size()),
                            .stages = stages,
                            .micro_batches = micro_batches};
  for (const std::string& row : rows) {
    auto& actions = schedule.actions.emplace_back();
    for (const std::string& word : split(row, ' ')) {
      actions.push_back({.kind = PipelineAction::Kind{word[0]},
                         .stage = word[3] - '0',
                         .micro_batch = word[1] - '0'});
    }
  }
  check(schedule);
  return schedule;
}

TEST(PipelineSchedule, AllEndOverNccl) {
  for (const auto [p, m] : many_sizes()) {
    for (const auto& schedule : {gpipe(p, m), one_f_one_b(p, m), zero_bubble(p, m)})
      EXPECT_EQ(refusal([&] { check_over_nccl(schedule); }), "");
  }
  for (int p = 1; p <= 6; ++p) {
    for (int rounds = 1; rounds <= 4; ++rounds) {
      for (int stages = 1; stages <= 4; ++stages)
        EXPECT_EQ(refusal([&] { check_over_nccl(interleaved(p, p * rounds, stages)); }), "");
    }
  }
}

// A receive that stood before the send of the action that is under way would close a circle.
TEST(PipelineSchedule, ARoundThroughAllRanksEndsOverNccl) {
  const auto round =
      schedule_of(6, 1, {"F0/0 F0/3 B0/3 B0/0", "F0/1 F0/4 B0/4 B0/1", "F0/2 F0/5 B0/5 B0/2"});
  EXPECT_EQ(refusal([&] { check_over_nccl(round); }), "");
}

// These end where messages have tags. Backwards cross forwards on their way to other ranks.
TEST(PipelineSchedule, WhatWouldWaitForEverOverNcclIsNamed) {
  const auto crossing = schedule_of(6,
                                    2,
                                    {"F0/0 F1/0 F0/3 B0/3 F1/3 B0/0 B1/3 B1/0",
                                     "F0/1 F1/1 F0/4 B0/4 F1/4 B0/1 B1/4 B1/1",
                                     "F0/2 F1/2 F0/5 B0/5 F1/5 B1/5 B0/2 B1/2"});
  EXPECT_THAT(refusal([&] { check_over_nccl(crossing); }),
              AllOf(HasSubstr("pipeline schedule own: expected an order in which all steps end"),
                    HasSubstr("wait for ever: rank 0 at ")));
  // The forwards alone are an evaluation.
  EXPECT_EQ(refusal([&] { check_over_nccl(forwards_of(crossing)); }), "");
}

TEST(PipelineSchedule, TheDrawingShowsRanksAndTime) {
  EXPECT_EQ(drawing(one_f_one_b(2, 2), {.forward = 1, .backward = 1}),
            "rank 0 F0 F1 .  B0 .  B1\n"
            "rank 1 .  F0 B0 F1 B1 .\n");
  EXPECT_THAT(to_text(interleaved(2, 2, 2)), HasSubstr("rank 1: F0/1 F1/1 F0/3 B0/3"));
}

}  // namespace
}  // namespace muster::testing
