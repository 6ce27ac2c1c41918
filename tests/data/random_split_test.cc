#include "muster/data/random_split.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "tests/data/divided.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

std::vector<int64_t> indices_in(const at::Tensor& indices) {
  std::vector<int64_t> numbers;
  test::add_numbers(indices, &numbers);
  return numbers;
}

template <class Parts>
std::vector<int64_t> sizes_of_parts(const Parts& parts) {
  std::vector<int64_t> sizes;
  for (const auto& part : parts)
    sizes.push_back(part.size());
  return sizes;
}

// 60 of class 0, 30 of class 1, 10 of class 2, one after the other.
TensorDataset three_classes() {
  const auto labels = torch::cat({torch::zeros({60}, torch::kLong),
                                  torch::ones({30}, torch::kLong),
                                  torch::full({10}, 2, torch::kLong)});
  return {torch::rand({100, 2}), labels};
}

std::vector<int64_t> counts_of_classes(const Subset<TensorDataset>& part) {
  return indices_in(
      torch::bincount(part.dataset().labels().index_select(0, part.indices()), {}, 3));
}

TEST(RandomSplit, IsPyTorchs) {
  const auto output = test::run_python("tests/data/pytorch_split.py");
  if (!output)
    GTEST_SKIP() << "no Python with PyTorch";
  for (const auto& line : nlohmann::json::parse(*output)) {
    const auto data = test::numbered(line["size"]);
    const auto parts =
        line.contains("fractions")
            ? random_split(
                  data, line["fractions"].get<std::vector<double>>(), {.seed = line["seed"]})
            : random_split(
                  data, line["lengths"].get<std::vector<int64_t>>(), {.seed = line["seed"]});
    ASSERT_EQ(parts.size(), line["parts"].size());
    for (size_t i = 0; i < parts.size(); ++i)
      EXPECT_EQ(indices_in(parts[i].indices()), line["parts"][i].get<std::vector<int64_t>>());
  }
}

TEST(RandomSplit, HasEachSampleOnce) {
  const auto data = std::make_shared<const test::Squares>();
  const auto parts = random_split(data, {0.7, 0.2, 0.1}, {.seed = 4});
  EXPECT_THAT(sizes_of_parts(parts), ElementsAre(70, 20, 10));
  std::vector<int64_t> all;
  for (const auto& part : parts) {
    EXPECT_EQ(&part.dataset(), data.get());
    test::add_numbers(part.indices(), &all);
  }
  EXPECT_EQ(test::sorted(all), test::range(0, 100));
  EXPECT_THAT(sizes_of_parts(random_split(data, {99, 1})), ElementsAre(99, 1));
  const auto other = random_split(data, {0.7, 0.2, 0.1}, {.seed = 5});
  EXPECT_FALSE(torch::equal(parts[0].indices(), other[0].indices()));
}

TEST(RandomSplit, KeepsTheMixtureOfClasses) {
  const auto data = three_classes();
  const auto parts = random_split(data, {0.7, 0.2, 0.1}, {.seed = 2, .labels = data.labels()});
  EXPECT_THAT(counts_of_classes(parts[0]), ElementsAre(42, 21, 7));
  EXPECT_THAT(counts_of_classes(parts[1]), ElementsAre(12, 6, 2));
  EXPECT_THAT(counts_of_classes(parts[2]), ElementsAre(6, 3, 1));
  std::vector<int64_t> all;
  for (const auto& part : parts)
    test::add_numbers(part.indices(), &all);
  EXPECT_EQ(test::sorted(all), test::range(0, 100));
  // A part shows no class after another.
  EXPECT_NE(test::sorted(indices_in(parts[0].indices())), indices_in(parts[0].indices()));
}

TEST(RandomSplit, FoldsHaveEachSampleOnce) {
  const auto folds = k_folds(test::numbered(11), 3, {.seed = 1});
  std::vector<int64_t> tested;
  for (const auto& [train, test] : folds) {
    EXPECT_EQ(train.size() + test.size(), 11);
    auto both = indices_in(train.indices());
    test::add_numbers(test.indices(), &both);
    EXPECT_EQ(test::sorted(both), test::range(0, 11));
    test::add_numbers(test.indices(), &tested);
  }
  EXPECT_EQ(test::sorted(tested), test::range(0, 11));
  EXPECT_EQ(folds[0].test.size(), 4);
  EXPECT_EQ(folds[2].test.size(), 3);
  const auto in_turn = k_folds(test::numbered(6), 3, {.shuffle = false});
  EXPECT_THAT(indices_in(in_turn[1].test.indices()), ElementsAre(2, 3));
  EXPECT_THAT(indices_in(in_turn[1].train.indices()), ElementsAre(0, 1, 4, 5));
}

TEST(RandomSplit, FoldsKeepTheMixtureOfClasses) {
  const auto data = three_classes();
  std::vector<int64_t> tested;
  for (const auto& [train, test] : k_folds(data, 7, {.labels = data.labels()})) {
    const auto counts = counts_of_classes(test);
    EXPECT_THAT(counts[0], ::testing::AllOf(Ge(8), Le(9)));
    EXPECT_THAT(counts[1], ::testing::AllOf(Ge(4), Le(5)));
    EXPECT_THAT(counts[2], ::testing::AllOf(Ge(1), Le(2)));
    test::add_numbers(test.indices(), &tested);
  }
  EXPECT_EQ(test::sorted(tested), test::range(0, 100));
}

TEST(RandomSplit, TakesFractionsInFloat) {
  EXPECT_EQ(random_split(test::numbered(10), {0.8F, 0.2F})[0].size(), 8);
  EXPECT_THAT(SplitLengths(0.8F, 0.2F).of(100'000'000), ElementsAre(80'000'001, 19'999'999));
}

TEST(RandomSplit, RefusesPartsThatDoNotFit) {
  const auto data = test::numbered(10);
  const auto refusal = [&](const SplitLengths& lengths, const SplitOptions& options = {}) {
    return message_of([&] { random_split(data, lengths, options); });
  };
  EXPECT_THAT(refusal({0.8, 0.1}), HasSubstr("add to 1, got [0.8, 0.1], which add to 0.9"));
  EXPECT_THAT(refusal({1.2, -0.2}), HasSubstr("fractions of 0 or more"));
  EXPECT_THAT(refusal({0.99, 0.01}), HasSubstr("got parts of [10, 0]"));
  EXPECT_THAT(refusal({10, 0}), HasSubstr("at least 1 of 10 samples"));
  EXPECT_THAT(refusal({8, 3}), HasSubstr("the 10 samples of the data set, got [8, 3]"));
  EXPECT_THAT(refusal(std::vector<double>()), HasSubstr("add to 1, got []"));
  EXPECT_THAT(refusal({0.5, 0.5}, {.labels = torch::arange(9)}), HasSubstr("got Long [9]"));
  EXPECT_THAT(refusal({0.5, 0.5}, {.labels = torch::rand({10})}), HasSubstr("got Float [10]"));
  EXPECT_THAT(message_of([&] { k_folds(data, 11); }),
              HasSubstr("2 to 10 folds of 10 samples, got 11"));
  EXPECT_THAT(message_of([&] { k_folds(data, 1); }), HasSubstr("got 1"));
}

// A program that searches: train on each fold, and go on in one of them after a stop.
TEST(RandomSplit, AFoldIsTrainedOnByRanksAndGoneOnWith) {
  const auto folds = k_folds(test::numbered(60), 4, {.seed = 9});
  const auto expected = indices_in(folds[2].train.indices());
  for (int ranks = 1; ranks <= 4; ++ranks)
    EXPECT_EQ(test::numbers_over_a_resume(folds[2].train, ranks, 5 - ranks), expected);
}

}  // namespace
}  // namespace muster
