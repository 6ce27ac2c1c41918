#include "muster/data/subset.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/data/loader.h"
#include "tests/data/divided.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Subset, OfTensorsGathersWholeBatches) {
  const Subset some(test::numbered(10), {7, 2, 5, 2});
  static_assert(GivesBatches<Subset<TensorDataset>>);
  DataLoader loader(some, {.batch_size = 3});
  EXPECT_THAT(test::numbers_of(loader), ElementsAre(7, 2, 5, 2));
  EXPECT_EQ(&some.dataset().labels(), &Subset(some).dataset().labels());  // shared, not copied
}

// A program's own data set is read one by one, with the random numbers of the subset's place.
TEST(Subset, OfADataSetOfOnesOwn) {
  const auto squares = std::make_shared<const test::Squares>();
  const Subset some(squares, torch::tensor({3, 1}, torch::kLong));
  static_assert(!GivesBatches<Subset<test::Squares>>);
  EXPECT_EQ(some.size(), 2);
  EXPECT_EQ(&some.dataset(), squares.get());
  DataLoader loader(some, {.batch_size = 2, .workers = 1});
  for (const auto& batch : loader)
    EXPECT_TRUE(torch::equal(batch, torch::tensor({9, 1}, torch::kLong)));
}

TEST(Subset, OfAnInterfaceAndOfASubset) {
  const std::shared_ptr<const Dataset<at::Tensor>> any = std::make_shared<const test::Squares>();
  const Subset last_half(any, torch::arange(50, 100));
  const Subset two(last_half, {0, 49});
  Generator rng(0, 0, 0);
  EXPECT_EQ(two.get(1, rng).item<int64_t>(), 99 * 99);
}

TEST(Subset, RefusesIndicesThatThereAreNot) {
  EXPECT_THAT(message_of([] { Subset(test::numbered(10), {0, 10}); }),
              HasSubstr("indices from 0 to 9, got 10 at place 1"));
  EXPECT_THAT(message_of([] { Subset(test::numbered(10), {-1}); }), HasSubstr("got -1 at place 0"));
  EXPECT_THAT(message_of([] { Subset(test::numbered(10), torch::rand({2})); }),
              HasSubstr("int64, got Float [2]"));
  EXPECT_THAT(message_of([] { Subset(std::shared_ptr<test::Squares>(), {0}); }),
              HasSubstr("null pointer"));
  Generator rng(0, 0, 0);
  EXPECT_THAT(message_of([&] { Subset(test::Squares(), {0, 1}).get(2, rng); }),
              HasSubstr("a sample from 0 to 1, got 2"));
}

TEST(Subset, ItsTensorIsItsOwn) {
  const auto indices = torch::arange(3);
  const Subset some(test::numbered(10), indices);
  indices.fill_(1000);
  EXPECT_TRUE(torch::equal(some.indices(), torch::arange(3)));
}

// Every number of ranks gets each sample once, and so do those that go on with the epoch.
TEST(Subset, IsDividedOverRanksAndGoneOnWith) {
  const Subset some(test::numbered(100), torch::arange(10, 58));
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int later = 1; later <= 4; ++later)
      EXPECT_EQ(test::numbers_over_a_resume(some, ranks, later), test::range(10, 58));
}

// Two splits of one size look alike, and a position in one of them is none in the other.
TEST(Subset, APositionIsOfTheseSamples) {
  DataLoader loader(Subset(test::numbered(10), torch::arange(6)), {.batch_size = 2});
  DataLoader other(Subset(test::numbered(10), torch::arange(4, 10)), {.batch_size = 2});
  DataLoader same(Subset(test::numbered(10), torch::arange(6)), {.batch_size = 2});
  for ([[maybe_unused]] const auto& batch : loader.steps(1))
    continue;
  EXPECT_THAT(message_of([&] { other.restore(loader.position()); }), HasSubstr("got others"));
  same.restore(loader.position());
  EXPECT_THAT(test::numbers_of(same), ElementsAre(2, 3, 4, 5));
}

// As after random_split with a seed that differs by rank.
TEST(Subset, RanksWithOtherSamplesDiffer) {
  const auto identity_of = [](const std::vector<int64_t>& indices) {
    const auto sampler = std::make_shared<DistributedSampler>(2);
    const DataLoader loader(
        std::make_shared<const Subset<TensorDataset>>(test::numbered(10), indices), sampler, {});
    return sampler->identity();
  };
  EXPECT_EQ(identity_of({1, 2}), identity_of({1, 2}));
  EXPECT_NE(identity_of({1, 2}).order, identity_of({1, 3}).order);
}

// Folds of one part of a split whose seed differs: the indices are the same, the samples are not.
TEST(Subset, TheSamplesBelowItAreOfItsIdentity) {
  const auto identity_of = [](const std::vector<int64_t>& outer) {
    return Subset(Subset(test::numbered(10), outer), {0, 1}).identity();
  };
  EXPECT_EQ(identity_of({1, 2, 3}), identity_of({1, 2, 3}));
  EXPECT_NE(identity_of({1, 2, 3}), identity_of({4, 5, 6}));
}

}  // namespace
}  // namespace muster
