#include "muster/data/distributed_sampler.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "muster/base/error.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> indices_of(int64_t length,
                                const SamplerOptions& options,
                                int64_t epoch = 0,
                                int64_t consumed = 0) {
  DistributedSampler sampler(length, options);
  sampler.set_epoch(epoch, consumed);
  return sampler.indices();
}

TEST(DistributedSampler, EqualsPyTorchIndexForIndex) {
  const auto output = test::run_python("tests/data/pytorch_sampler.py");
  if (!output)
    GTEST_SKIP() << "no Python with PyTorch in .deps";
  std::istringstream lines(*output);
  int compared = 0;
  for (std::string line; std::getline(lines, line); ++compared) {
    const auto expected = nlohmann::json::parse(line);
    DistributedSampler sampler(expected["n"],
                               {.num_replicas = expected["replicas"],
                                .rank = expected["rank"],
                                .shuffle = expected["shuffle"],
                                .seed = expected["seed"],
                                .drop_last = expected["drop_last"]});
    sampler.set_epoch(expected["epoch"]);
    ASSERT_EQ(sampler.num_samples(), expected["size"].get<int64_t>()) << line;
    ASSERT_EQ(sampler.indices(), expected["indices"].get<std::vector<int64_t>>()) << line;
  }
  EXPECT_GT(compared, 1000);
}

// The same without Python: what PyTorch 2.15 gave.
TEST(DistributedSampler, EqualsRecordedPyTorch) {
  EXPECT_THAT(indices_of(10, {.num_replicas = 3, .rank = 1, .seed = 7}, 2),
              ElementsAre(5, 6, 1, 0));
  EXPECT_THAT(indices_of(10, {.num_replicas = 3, .rank = 2, .seed = 7, .drop_last = true}, 2),
              ElementsAre(8, 2, 4));
}

TEST(DistributedSampler, WithoutShuffleStrides) {
  EXPECT_THAT(indices_of(7, {.num_replicas = 3, .rank = 1, .shuffle = false}),
              ElementsAre(1, 4, 0));
  EXPECT_THAT(indices_of(7, {.num_replicas = 3, .rank = 1, .shuffle = false, .drop_last = true}),
              ElementsAre(1, 4));
}

TEST(DistributedSampler, PadsEvenWhenRanksExceedSamplesSeveralTimes) {
  for (int rank = 0; rank < 7; ++rank)
    EXPECT_THAT(indices_of(2, {.num_replicas = 7, .rank = rank, .shuffle = false}),
                ElementsAre(rank % 2));
}

TEST(DistributedSampler, DropLastWithFewerSamplesThanRanksIsEmptyAsInPyTorch) {
  EXPECT_THAT(indices_of(2, {.num_replicas = 3, .drop_last = true}), IsEmpty());
}

TEST(DistributedSampler, EpochsDifferAndComeBack) {
  DistributedSampler sampler(100, {});
  sampler.set_epoch(1);
  const auto first = sampler.indices();
  sampler.set_epoch(2);
  EXPECT_NE(sampler.indices(), first);
  sampler.set_epoch(1);
  EXPECT_EQ(sampler.indices(), first);
}

// The loop over epochs that everybody writes, resumed within one.
TEST(DistributedSampler, SetEpochKeepsThePlaceInTheEpochThatGoesOn) {
  DistributedSampler sampler(100, {});
  sampler.set_epoch(1, 60, 100);
  sampler.set_epoch(1);
  EXPECT_EQ(sampler.indices().size(), 40U);
  sampler.set_epoch(2);
  EXPECT_EQ(sampler.indices().size(), 100U);
  sampler.set_epoch(1, 60, 100);
  sampler.set_epoch(2);
  sampler.set_epoch(1);
  EXPECT_EQ(sampler.indices().size(), 100U) << "led elsewhere in between";
}

TEST(DistributedSampler, WarnsOnceOfASecondEpochWithoutSetEpoch) {
  ::testing::internal::CaptureStderr();
  DistributedSampler sampler(8, {});
  sampler.indices();
  EXPECT_FALSE(sampler.epoch_repeated());
  sampler.set_epoch(1);
  sampler.indices();
  EXPECT_FALSE(sampler.epoch_repeated());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");

  ::testing::internal::CaptureStderr();
  sampler.indices();
  EXPECT_TRUE(sampler.epoch_repeated());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("epoch 1"), HasSubstr("set_epoch")));
  ::testing::internal::CaptureStderr();
  sampler.indices();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(DistributedSampler, DoesNotWarnInOrder) {
  DistributedSampler sampler(8, {.shuffle = false});
  sampler.indices();
  sampler.indices();
  EXPECT_FALSE(sampler.epoch_repeated());
}

TEST(DistributedSampler, RefusesBadArguments) {
  const auto make = [](int64_t length, int replicas, int rank) {
    return message_of(
        [&] { DistributedSampler(length, {.num_replicas = replicas, .rank = rank}); });
  };
  EXPECT_THAT(make(0, 1, 0), HasSubstr("at least 1 sample, got length 0"));
  EXPECT_THAT(make(-3, 1, 0), HasSubstr("got length -3"));
  EXPECT_THAT(make(5, 0, 0), HasSubstr("at least 1 replica, got 0"));
  EXPECT_THAT(make(5, 4, 4), HasSubstr("from 0 to 3, got 4"));
  EXPECT_THAT(make(5, 4, -1), HasSubstr("from 0 to 3, got -1"));
  DistributedSampler sampler(5, {});
  EXPECT_THROW(sampler.set_epoch(-1), Error);
  EXPECT_THROW(sampler.set_epoch(0, -1), Error);
  EXPECT_THROW(sampler.set_epoch(0, 0, -1), Error);
}

TEST(DistributedSampler, ThePlaceInAnEpochIsThatOfTheSameData) {
  DistributedSampler sampler(500, {.num_replicas = 2});
  sampler.set_epoch(2, 400, 500);
  EXPECT_EQ(sampler.num_samples(), 50);
  EXPECT_NO_THROW(sampler.set_epoch(2, 0, 1438)) << "an epoch from its beginning";
  EXPECT_THAT(message_of([&] { sampler.set_epoch(2, 400, 1438); }),
              HasSubstr("expected the data set of 1438 samples, of which epoch 2 has used 400, got "
                        "one of 500; give"));
  ::testing::internal::CaptureStderr();
  sampler.set_epoch(2, 501);  // what was repeated to fill the last batch
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  sampler.set_epoch(2, 900);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr(
          "the position says that epoch 2 has used 900 samples, but the data set has only 500, "
          "so nothing of the "
          "epoch is left"));
}

// Going on in an epoch with another number of ranks: no sample twice, none lost.
TEST(DistributedSampler, ResumesWithAnotherNumberOfRanks) {
  constexpr int64_t kLength = 103;
  constexpr int64_t kSteps = 5;
  for (const int before : {1, 2, 3, 8}) {
    for (const int after : {1, 2, 4, 5}) {
      std::vector<int> seen(kLength);
      for (int rank = 0; rank < before; ++rank) {
        const auto mine = indices_of(kLength, {.num_replicas = before, .rank = rank, .seed = 3}, 4);
        for (int64_t i = 0; i < kSteps; ++i)
          ++seen[mine[i]];
      }
      const int64_t consumed = kSteps * before;
      int64_t padded = 0;
      for (int rank = 0; rank < after; ++rank) {
        const auto rest =
            indices_of(kLength, {.num_replicas = after, .rank = rank, .seed = 3}, 4, consumed);
        for (const auto index : rest)
          ++seen[index];
        padded += static_cast<int64_t>(rest.size());
      }
      padded -= kLength - consumed;
      EXPECT_LT(padded, after);
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), 0) << before << " to " << after;
      EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), int64_t{0}), kLength + padded);
      EXPECT_LE(*std::max_element(seen.begin(), seen.end()), 1 + (padded > 0));
    }
  }
}

TEST(DistributedSampler, ResumingWithTheSameRanksIsTheRestOfTheEpoch) {
  for (const bool drop_last : {false, true}) {
    const SamplerOptions options{.num_replicas = 4, .rank = 3, .seed = 1, .drop_last = drop_last};
    const auto whole = indices_of(103, options, 2);
    const auto rest = indices_of(103, options, 2, int64_t{10} * 4);
    EXPECT_EQ(rest, std::vector<int64_t>(whole.begin() + 10, whole.end()));
  }
  EXPECT_THAT(indices_of(10, {.num_replicas = 3}, 0, 12), IsEmpty());
}

// Every rank's samples of one global batch after another, joined in rank order.
std::vector<int64_t> joined_batches(int64_t length,
                                    SamplerOptions options,
                                    int64_t epoch,
                                    int64_t consumed = 0) {
  std::vector<DistributedSampler> ranks;
  std::vector<std::vector<int64_t>> indices;
  options.num_replicas = static_cast<int>(options.shares.size());
  for (options.rank = 0; options.rank < options.num_replicas; ++options.rank) {
    ranks.emplace_back(length, options);
    ranks.back().set_epoch(epoch, consumed);
    indices.push_back(ranks.back().indices());
    EXPECT_EQ(std::ssize(indices.back()), ranks.back().num_samples());
  }
  std::vector<int64_t> joined;
  std::vector<int64_t> taken(ranks.size(), 0);
  for (int64_t batch = 0; ranks[0].global_samples(batch) > 0; ++batch) {
    const auto before = std::ssize(joined);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (int64_t i = 0; i < ranks[rank].batch_samples(batch); ++i)
        joined.push_back(indices[rank].at(static_cast<size_t>(taken[rank]++)));
    }
    EXPECT_EQ(std::ssize(joined) - before, ranks[0].global_samples(batch));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    EXPECT_EQ(taken[rank], std::ssize(indices[rank]));
  return joined;
}

TEST(DistributedSampler, SharesOfAGlobalBatchAreTheOrderOfOneProcess) {
  for (const std::vector<int64_t>& shares :
       {std::vector<int64_t>{1}, {3, 1}, {1, 1, 8}, {2, 5, 1, 4}}) {
    for (const int64_t length : {13, 100, 1438}) {
      const auto whole = indices_of(length, {.seed = 7}, 2);
      auto joined = joined_batches(length, {.seed = 7, .shares = shares}, 2);
      // Nothing is repeated, except in a last batch with fewer samples than ranks.
      ASSERT_GE(std::ssize(joined), length);
      ASSERT_LT(std::ssize(joined), length + std::ssize(shares));
      for (size_t i = 0; i < joined.size(); ++i)
        EXPECT_EQ(joined[i], whole[i % whole.size()]);
      const int64_t global = std::accumulate(shares.begin(), shares.end(), int64_t{0});
      joined = joined_batches(length, {.seed = 7, .drop_last = true, .shares = shares}, 2);
      EXPECT_EQ(std::ssize(joined), length / global * global);
      // After a restart the rest goes on where it was.
      joined = joined_batches(length, {.seed = 7, .shares = shares}, 2, global);
      if (length > global) {
        EXPECT_EQ(joined[0], whole[static_cast<size_t>(global)]);
      }
    }
  }
}

TEST(DistributedSampler, RefusesSharesThatDoNotFitTheRanks) {
  EXPECT_THAT(message_of([] { DistributedSampler(10, {.num_replicas = 2, .shares = {1}}); }),
              HasSubstr("expected 2 shares of at least 1, one a rank, got [1]"));
  EXPECT_THROW(DistributedSampler(10, {.num_replicas = 2, .shares = {1, 0}}), Error);
  EXPECT_THROW(DistributedSampler(10, {}).batch_samples(0), Error);
}

TEST(DistributedSampler, ATailIsCutOrKept) {
  EXPECT_THAT(test::message_of([] { DistributedSampler(5, {.drop_last = true, .pad = false}); }),
              HasSubstr("drop_last or pad = false, got both"));
}

TEST(SamplerIdentity, IsPrintedAndSurvivesTravelling) {
  DistributedSampler sampler(1438, {.num_replicas = 4, .rank = 1, .seed = -5, .drop_last = true});
  sampler.set_epoch(2, 40);
  const auto identity = sampler.identity();
  EXPECT_EQ(to_string(identity),
            "shuffled(1438) num_replicas=4 rank=1 seed=-5 epoch=2 length=1438 shuffle=true "
            "drop_last=true "
            "consumed=40");
  EXPECT_EQ(SamplerIdentity::from_bytes(identity.to_bytes()), identity);
  EXPECT_THAT(message_of([] { SamplerIdentity::from_bytes("short"); }), HasSubstr("got 5"));
}

TEST(SamplerIdentity, ComparisonNamesTheFirstDifference) {
  std::vector<SamplerIdentity> ranks;
  ranks.reserve(3);
  for (int rank = 0; rank < 3; ++rank)
    ranks.push_back(DistributedSampler(100, {.num_replicas = 3, .rank = rank}).identity());
  EXPECT_NO_THROW(check_samplers_agree(ranks));

  auto other = ranks;
  other[2].seed = 9;
  EXPECT_THAT(message_of([&] { check_samplers_agree(other); }),
              AllOf(HasSubstr("the same seed on every rank, got 0 on rank 0 and 9 on rank 2;"),
                    HasSubstr("\n  ranks 0, 1: shuffled(100) num_replicas=3 seed=0 epoch=0"),
                    HasSubstr("\n  rank 2: shuffled(100) num_replicas=3 seed=9 epoch=0")));
  other = ranks;
  other[1].length = 99;
  EXPECT_THAT(message_of([&] { check_samplers_agree(other); }), HasSubstr("the same length"));
  other = ranks;
  other[1].rank = 0;
  EXPECT_THAT(message_of([&] { check_samplers_agree(other); }), HasSubstr("expected rank=1"));
  other.clear();
  for (const std::vector<int64_t>& shares : {std::vector<int64_t>{2, 3, 5}, {4, 3, 3}, {2, 3, 5}})
    other.push_back(
        DistributedSampler(
            100, {.num_replicas = 3, .rank = static_cast<int>(other.size()), .shares = shares})
            .identity());
  EXPECT_THAT(
      message_of([&] { check_samplers_agree(other); }),
      HasSubstr("rank 1's to begin at 4 of the global batch, where those before it end at 2"));
  other.assign(ranks.begin(), ranks.begin() + 2);
  EXPECT_THAT(message_of([&] { check_samplers_agree(other); }),
              HasSubstr("expected num_replicas=2"));
}

TEST(SamplerIdentity, FirstEpochCheckIsCalledOnce) {
  DistributedSampler sampler(10, {.num_replicas = 2, .rank = 1});
  std::vector<SamplerIdentity> seen;
  sampler.set_first_epoch_check([&](const SamplerIdentity& identity) { seen.push_back(identity); });
  sampler.set_epoch(3);
  sampler.indices();
  sampler.set_epoch(4);
  sampler.indices();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].epoch, 3);
}

}  // namespace
}  // namespace muster
