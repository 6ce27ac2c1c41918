#include "muster/trace/compare_activity.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kHostsClock = 1'000'000;  // of rank r: r times it

class ComparedRanks {
 public:
  explicit ComparedRanks(int size) {
    for (int rank = 0; rank < size; ++rank)
      views.push_back(
          {.rank = rank, .world_size = size, .unix_minus_monotonic_ns = rank * kHostsClock});
  }

  // At the time `at` of all hosts.
  CallView& call(int rank,
                 int64_t sequence,
                 const std::string& what,
                 int64_t at = 0,
                 const std::string& operation = "all_reduce",
                 const std::string& group = "world") {
    ActivityView& view = views[static_cast<size_t>(rank)];
    view.calls.push_back({.number = ++view.num_calls,
                          .group = group,
                          .operation = operation,
                          .sequence = sequence,
                          .what = what,
                          .begin_ns = at - rank * kHostsClock,
                          .end_ns = at + 1 - rank * kHostsClock,
                          .state = CallState::ended});
    return view.calls.back();
  }
  void all(int64_t sequence, const std::string& what, int64_t at = 0) {
    for (int rank = 0; rank < static_cast<int>(views.size()); ++rank)
      call(rank, sequence, what, at);
  }

  std::vector<ActivityView> views;
};

TEST(CompareActivity, RanksThatDidTheSame) {
  ComparedRanks ranks(3);
  for (int i = 0; i < 5; ++i)
    ranks.all(i, "f32[4]");
  EXPECT_THAT(compare_activity(ranks.views), IsEmpty());
  EXPECT_THAT(compare_activity(std::vector<ActivityView>{}), IsEmpty());
}

TEST(CompareActivity, OfAJobThatReplacedRanksTheNewestGeneration) {
  ComparedRanks ranks(3);
  for (const int survivor : {0, 2}) {
    ranks.call(survivor, 7, "f32[4]");
    ranks.call(survivor, 0, "f32[4]", 5, "all_reduce", "world of generation 1");
  }
  ranks.call(1, 0, "f32[4]", 5, "all_reduce", "world of generation 1");
  EXPECT_THAT(compare_activity(ranks.views), IsEmpty())
      << "the replacement has no part in what was before";

  ranks.call(0, 1, "f32[4]", 6, "all_reduce", "world of generation 1").end_ns.reset();
  ranks.call(2, 1, "f32[4]", 6, "all_reduce", "world of generation 1").end_ns.reset();
  const auto found = compare_activity(ranks.views);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].ranks, ElementsAre(1));
  EXPECT_EQ(found[0].group, "world of generation 1");
}

TEST(CompareActivity, ARankOfWhoseCallsTooFewAreKnownIsNotAccused) {
  ComparedRanks ranks(2);
  ranks.all(0, "f32[4]");
  for (int i = 1; i <= 20; ++i)
    ranks.call(1, i, "f32[4]", i, "send", "other");
  ranks.views[1].calls.erase(ranks.views[1].calls.begin(), ranks.views[1].calls.begin() + 5);
  EXPECT_THAT(compare_activity(ranks.views), IsEmpty()) << "it may have made the call";
}

TEST(CompareActivity, ARankThatNeverBegan) {
  ComparedRanks ranks(3);
  ranks.all(40, "f32[1000]");
  ranks.call(0, 41, "f32[1000]").end_ns.reset();
  ranks.call(1, 41, "f32[1000]").end_ns.reset();
  ranks.views[2].main_thread = 9;
  ranks.views[2].threads = {{.thread = 9, .spans = {{.name = "tokenize"}}}};
  const auto found = compare_activity(ranks.views);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].ranks, ElementsAre(2));
  EXPECT_EQ(found[0].text(),
            "rank 2 left the common path first: it never began all_reduce #41 f32[1000] of world, "
            "which rank(s) 0, "
            "1 began; it was in tokenize; last all_reduce #40 f32[1000]");
}

TEST(CompareActivity, ARankWithoutAnyCall) {
  ComparedRanks ranks(3);
  ranks.call(0, 0, "f32[1]");
  ranks.call(2, 0, "f32[1]");
  EXPECT_THAT(compare_activity(ranks.views).at(0).ranks, ElementsAre(1));
}

TEST(CompareActivity, AnotherShapeOrOperation) {
  ComparedRanks ranks(3);
  ranks.all(0, "f32[4]");
  ranks.call(0, 1, "f32[5]");
  ranks.call(1, 1, "f32[4]");
  ranks.call(2, 1, "f32[4]");
  ranks.all(2, "f32[4]");
  EXPECT_EQ(
      compare_activity(ranks.views).at(0).text(),
      "rank 0 left the common path first: it called all_reduce #1 f32[5] where rank(s) 1, 2 called "
      "all_reduce #1 "
      "f32[4] "
      "of world");
  ComparedRanks two(2);
  two.call(0, 1, "", 0, "barrier");
  two.call(1, 1, "f32[4]");
  EXPECT_THAT(compare_activity(two.views).at(0).ranks, ElementsAre(1))
      << "of two, rank 0 is the measure";
}

TEST(CompareActivity, PartsOfAnAllToAllMayDiffer) {
  ComparedRanks ranks(2);
  ranks.call(0, 1, "f32[3, 4]", 0, "all_to_all");
  ranks.call(1, 1, "f32[5, 4]", 0, "all_to_all");
  EXPECT_THAT(compare_activity(ranks.views), IsEmpty());
}

TEST(CompareActivity, WhatAFileHoldsNoLongerIsNotCompared) {
  ComparedRanks ranks(2);
  for (int i = 10; i < 14; ++i)
    ranks.call(0, i, "f32[4]");
  for (int i = 12; i < 14; ++i)
    ranks.call(1, i, "f32[4]");
  ranks.views[1].num_calls = 1026;
  EXPECT_THAT(compare_activity(ranks.views), IsEmpty());
}

TEST(CompareActivity, ACallThatOneNeverEnded) {
  ComparedRanks ranks(2);
  ranks.all(0, "f32[4]");
  ranks.views[1].calls[0].end_ns.reset();
  ranks.views[1].calls[0].state = CallState::under_way;
  EXPECT_EQ(compare_activity(ranks.views).at(0).text(),
            "rank 1 never ended all_reduce #0 f32[4] of world, which rank(s) 0 ended");
}

// By the clock that all hosts share.
TEST(CompareActivity, TheEarliestGroupIsFirst) {
  ComparedRanks ranks(3);
  ranks.call(0, 5, "f32[4]", 900);
  ranks.call(1, 5, "f32[4]", 900);
  for (const int rank : {1, 2})
    ranks.call(rank, 0, "f32[1]", 100, "all_reduce", "ranks 1,2");
  ranks.call(2, 1, "f32[2]", 500, "all_reduce", "ranks 1,2");
  const auto found = compare_activity(ranks.views);
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].group, "ranks 1,2");
  EXPECT_THAT(found[0].ranks, ElementsAre(1));
  EXPECT_EQ(found[1].group, "world");
  EXPECT_THAT(found[1].ranks, ElementsAre(2));
}

// Messages are between two ranks.
TEST(CompareActivity, MessagesAreNotCompared) {
  ComparedRanks ranks(2);
  ranks.call(0, 0, "f32[4]", 0, "send").peer = 1;
  EXPECT_THAT(compare_activity(ranks.views), IsEmpty());
}

}  // namespace
}  // namespace muster
