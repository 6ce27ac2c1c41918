#include "muster/data/standard_scaler.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>
#include <vector>

#include "muster/data/random_split.h"
#include "tests/data/divided.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::HasSubstr;

TensorDataset of_five_features(int64_t size) {
  torch::manual_seed(5);
  auto features = torch::randn({size, 5}) * torch::tensor({1.0, 10.0, 0.1, 5.0, 1.0}) +
                  torch::tensor({0.0, 100.0, -3.0, 7.0, 1000.0});
  features.select(1, 3).fill_(0.1F);  // a constant whose mean rounds
  return {features, torch::arange(size)};
}

// Fitted to the training part, and applied to both.
TEST(StandardScaler, StandardisesBothPartsByTheTrainingPart) {
  const auto data = of_five_features(1000);
  const auto parts = random_split(data, {0.8, 0.2}, {.seed = 1});
  StandardScaler scaler(5);
  scaler->fit(parts[0]);
  EXPECT_EQ(scaler->samples(), 800);
  const TensorDataset train = scaler->transform(parts[0]), test = scaler->transform(parts[1]);
  const auto rows = data.features().index_select(0, parts[0].indices()).to(torch::kDouble);
  EXPECT_TRUE(torch::allclose(scaler->mean(), rows.mean(0)));
  auto deviation = rows.std(0, /*unbiased=*/false);
  deviation[3] = 1;
  EXPECT_TRUE(torch::allclose(scaler->deviation(), deviation));
  const auto is_near = [](const at::Tensor& a, double b) {
    return torch::allclose(a, torch::full_like(a, b), 0, 1e-3);
  };
  EXPECT_TRUE(is_near(train.features().mean(0), 0));
  EXPECT_TRUE(is_near(train.features().slice(1, 0, 3).std(0, false), 1));
  EXPECT_TRUE(is_near(train.features().select(1, 3), 0));  // the constant one
  EXPECT_EQ(train.features().scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(test.labels(), parts[1].indices()));
  EXPECT_TRUE(torch::allclose(scaler->inverse_transform(test.features()),
                              data.features().index_select(0, parts[1].indices()),
                              1e-4,
                              1e-4));
}

TEST(StandardScaler, LearnsBatchByBatchWhatItLearnsAtOnce) {
  const auto features = of_five_features(1003).features();
  StandardScaler whole(5), by_batch(5);
  whole->fit(features);
  for (const auto& batch : features.split(100))
    by_batch->partial_fit(batch);
  EXPECT_TRUE(torch::allclose(by_batch->mean(), whole->mean(), 1e-12));
  EXPECT_TRUE(torch::allclose(by_batch->deviation(), whole->deviation(), 1e-9));
  by_batch->fit(features.slice(0, 0, 10));  // anew
  EXPECT_EQ(by_batch->samples(), 10);
}

// Saved with a program, and loaded by another, into a scaler of its own; as a layer too.
// The last rank has no sample.
TEST(StandardScaler, RanksLearnWhatOneLearns) {
  const auto data = of_five_features(1000);
  StandardScaler alone(5);
  alone->fit(data);
  testing::run_ranks(4, [&](ProcessGroup& group) {
    const std::vector<int64_t> ends{0, 100, 650, 1000, 1000};
    StandardScaler scaler(5);
    for (int64_t at = ends[group.rank()]; at < ends[group.rank() + 1]; at += 50)
      scaler->partial_fit(data.features().narrow(0, at, 50));
    EXPECT_NE(scaler->samples(), 1000);
    scaler->reduce(group);
    EXPECT_EQ(scaler->samples(), 1000);
    EXPECT_TRUE(scaler->mean().allclose(alone->mean(), 1e-12));
    EXPECT_TRUE(scaler->deviation().allclose(alone->deviation(), 1e-10));
    EXPECT_EQ(scaler->deviation()[3].item<double>(), 1) << "a constant";
    const at::Tensor first = scaler->mean().clone();
    at::Tensor of_rank0 = first.clone();
    group.broadcast(of_rank0, 0);
    EXPECT_TRUE(of_rank0.equal(first));
    EXPECT_THAT(message_of([&] { scaler->partial_fit(data.features()); }),
                HasSubstr("expected no partial_fit() after reduce()"));
    scaler->fit(data);
    scaler->partial_fit(data.features());
    EXPECT_EQ(scaler->samples(), 2000);
    StandardScaler of_none(5);
    of_none->reduce(group);
    EXPECT_EQ(of_none->samples(), 0);
    EXPECT_THAT(message_of([&] { of_none(data.features()); }), HasSubstr("of no samples"));
  });
}

TEST(StandardScaler, IsSavedAndLoadedAsAModel) {
  const test::TempFolder folder;
  const auto features = of_five_features(100).features();
  StandardScaler scaler(5);
  scaler->fit(features);
  torch::save(scaler, folder / "scaler.pt");
  StandardScaler same(5);
  torch::load(same, folder / "scaler.pt");
  EXPECT_TRUE(torch::equal(same(features), scaler->transform(features)));
  torch::nn::Sequential net(StandardScaler(5), torch::nn::Linear(5, 1)), copy = net;
  net[0]->as<StandardScaler>()->fit(features);
  EXPECT_TRUE(torch::equal(net->forward(features),
                           net[1]->as<torch::nn::Linear>()->forward(scaler(features))));
  const auto cloned = std::dynamic_pointer_cast<StandardScalerImpl>(scaler->clone());
  EXPECT_TRUE(torch::equal(cloned->transform(features), scaler(features)));
}

TEST(StandardScaler, TakesOtherShapesAndTypes) {
  StandardScaler channels(3), targets(1), numbers(2);
  const auto pictures = torch::rand({8, 3, 4, 5});
  channels->fit(pictures);
  EXPECT_TRUE(torch::allclose(channels(pictures).mean({0, 2, 3}), torch::zeros({3}), 0, 1e-5));
  EXPECT_EQ(channels->samples(), 8 * 4 * 5);
  const auto labels = torch::tensor({1.0, 3.0});
  targets->fit(labels);
  EXPECT_TRUE(torch::equal(targets(labels), torch::tensor({-1.0, 1.0})));
  numbers->fit(torch::tensor({{0, 1}, {2, 3}}));
  EXPECT_TRUE(torch::equal(numbers(torch::tensor({{0, 5}})), torch::tensor({{-1.0, 3.0}})));
  EXPECT_EQ(numbers(torch::zeros({1, 2}, torch::kDouble)).scalar_type(), torch::kDouble);
}

TEST(StandardScaler, RefusesWhatItCannotLearn) {
  StandardScaler scaler(2);
  EXPECT_THAT(message_of([&] { scaler(torch::zeros({1, 2})); }), HasSubstr("fitted or loaded"));
  EXPECT_THAT(message_of([&] { scaler->fit(torch::zeros({0, 2})); }), HasSubstr("no samples"));
  scaler->fit(torch::tensor({{1.0, 2.0}, {3.0, 6.0}}));
  const auto mean = scaler->mean().clone();
  auto wrong = torch::zeros({5000, 2});
  wrong[4500][1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(message_of([&] { scaler->fit(wrong); }),
              HasSubstr("got nan in feature 1 of sample 4500"));
  EXPECT_THAT(message_of([&] { scaler->fit(TensorDataset(wrong, torch::arange(5000))); }),
              HasSubstr("got nan in feature 1"));
  EXPECT_TRUE(torch::equal(scaler->mean(), mean));  // as it was
  EXPECT_THAT(message_of([&] { scaler->fit(torch::zeros({4, 3})); }),
              HasSubstr("[N, 2, ...], got [4, 3]"));
  EXPECT_THAT(message_of([&] { scaler(torch::zeros({2})); }), HasSubstr("got [2]"));
  EXPECT_THAT(message_of([&] { scaler(at::Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(message_of([] { StandardScaler(0); }), HasSubstr("at least 1 feature"));
}

}  // namespace
}  // namespace muster
