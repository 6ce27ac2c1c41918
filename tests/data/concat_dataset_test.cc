#include "muster/data/concat_dataset.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/data/loader.h"
#include "muster/data/subset.h"
#include "tests/data/divided.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ConcatDataset, JoinsTensorsByWholeBatches) {
  const ConcatDataset all(test::numbered(3), Subset(test::numbered(10, 100), {4, 2}));
  static_assert(GivesBatches<decltype(all)>);
  EXPECT_EQ(all.size(), 5);
  EXPECT_THAT(all.sizes(), ElementsAre(3, 2));
  // Rows of both, in the order that is asked for.
  const auto batch = all.get_batch(torch::tensor({4, 0, 3, 2}, torch::kLong), false);
  EXPECT_TRUE(torch::equal(batch.labels, torch::tensor({102, 0, 104, 2}, torch::kLong)));
  EXPECT_TRUE(torch::equal(batch.features.select(1, 1), batch.labels.to(torch::kFloat) * 10));
  DataLoader loader(all, {.batch_size = 2});
  EXPECT_THAT(test::numbers_of(loader), ElementsAre(0, 1, 2, 104, 102));
}

struct Odd : Dataset<at::Tensor> {
  int64_t size() const override { return 3; }
  at::Tensor get(int64_t index, Generator& /*rng*/) const override {
    return torch::tensor(2 * index + 1);
  }
};

TEST(ConcatDataset, JoinsDataSetsOfOnesOwn) {
  const auto squares = std::make_shared<const test::Squares>();
  const ConcatDataset all(Odd(), squares, Odd());
  static_assert(!GivesBatches<decltype(all)>);
  EXPECT_EQ(all.size(), 106);
  Generator rng(0, 0, 0);
  EXPECT_EQ(all.get(2, rng).item<int64_t>(), 5);
  EXPECT_EQ(all.get(3 + 9, rng).item<int64_t>(), 81);
  EXPECT_EQ(all.get(105, rng).item<int64_t>(), 5);
  DataLoader loader(Subset(all, {0, 5}), {.batch_size = 2});
  for (const auto& batch : loader)
    EXPECT_TRUE(torch::equal(batch, torch::tensor({1, 4}, torch::kLong)));
}

TEST(ConcatDataset, AnyNumberOfOneType) {
  std::vector<TensorDataset> parts;
  for (int64_t i = 0; i < 5; ++i)
    parts.push_back(test::numbered(i, 10 * i));  // the first has no sample
  const ConcatDataset all(parts);
  DataLoader loader(all, {.batch_size = 4});
  EXPECT_THAT(test::numbers_of(loader), ElementsAre(10, 20, 21, 30, 31, 32, 40, 41, 42, 43));
}

TEST(ConcatDataset, IsDividedOverRanksAndGoneOnWith) {
  const ConcatDataset all(test::numbered(13), test::numbered(31, 13));
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int later = 1; later <= 4; ++later)
      EXPECT_EQ(test::numbers_over_a_resume(all, ranks, later), test::range(0, 44));
}

TEST(ConcatDataset, RefusesWhatDoesNotBelongTogether) {
  const auto labels = torch::arange(2);
  const TensorDataset narrow(torch::zeros({2, 3}), labels), wide(torch::zeros({2, 4}), labels),
      precise(torch::zeros({2, 3}, torch::kDouble), labels);
  EXPECT_THAT(message_of([&] { ConcatDataset(narrow, wide); }),
              HasSubstr("Float [3] on cpu, as in the first data set, got Float [4] on cpu in data "
                        "set 1 (tensor 0)"));
  EXPECT_THAT(message_of([&] { ConcatDataset(std::vector{narrow, narrow, precise}); }),
              HasSubstr("got Double [3] on cpu in data set 2"));
  EXPECT_THAT(message_of([&] { ConcatDataset(std::vector<TensorDataset>()); }),
              HasSubstr("at least 1 data set"));
  Generator rng(0, 0, 0);
  EXPECT_THAT(message_of([&] { ConcatDataset(Odd()).get(3, rng); }),
              HasSubstr("a sample from 0 to 2, got 3"));
}

}  // namespace
}  // namespace muster
