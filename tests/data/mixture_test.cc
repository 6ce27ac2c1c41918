#include "muster/data/mixture.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "muster/data/concat_dataset.h"
#include "muster/data/readers/tokens.h"
#include "tests/data/divided.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::HasSubstr;

std::vector<int64_t> epoch_of(const SampleOrder& order, int64_t epoch, int64_t seed = 3) {
  const auto at = order.epoch(seed, epoch);
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < order.samples; ++i)
    samples.push_back(at(i));
  return samples;
}

TEST(Mixture, HasEachDatasetsPart) {
  const auto order = mixture({10, 100, 5, 7}, {0.5, 0.25, 0.25, 0}, 40);
  EXPECT_EQ(order.dataset_size, 122);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto samples = epoch_of(order, epoch);
    const auto of = [&](int64_t begin, int64_t end) {
      return std::ranges::count_if(samples, [&](int64_t s) { return s >= begin && s < end; });
    };
    EXPECT_EQ(of(0, 10), 20);
    EXPECT_EQ(of(10, 110), 10);
    EXPECT_EQ(of(110, 115), 10);
    EXPECT_EQ(of(115, 122), 0);
  }
  EXPECT_NE(epoch_of(order, 0), epoch_of(order, 1));
  EXPECT_NE(epoch_of(order, 0, 3), epoch_of(order, 0, 4));
  EXPECT_EQ(epoch_of(order, 2), epoch_of(mixture({10, 100, 5, 7}, {2, 1, 1, 0}, 40), 2));
}

// Over the ends of epochs: 7 samples, 10 of an epoch.
TEST(Mixture, ASampleComesAgainAfterAllOthers) {
  const auto order = mixture({7, 3}, {1, 1}, 20);
  std::map<int64_t, int> seen;
  for (int64_t epoch = 0; epoch < 7; ++epoch)
    for (const int64_t sample : epoch_of(order, epoch))
      ++seen[sample];
  for (int64_t sample = 0; sample < 7; ++sample)
    EXPECT_EQ(seen[sample], 10) << sample;  // 7 epochs of 10 draws
}

TEST(Mixture, DefaultsToAsManySamplesAsThereAre) {
  EXPECT_EQ(mixture({10, 30}, {1, 3}).samples, 40);
  EXPECT_EQ(test::sorted(epoch_of(mixture({10, 30}, {1, 3}), 0)), test::range(0, 40));
}

TEST(Mixture, RefusesWeightsThatDoNotFit) {
  EXPECT_THAT(message_of([] { mixture({1, 2}, {1}); }), HasSubstr("1 weights for 2 data sets"));
  EXPECT_THAT(message_of([] { mixture({}, {}); }), HasSubstr("0 weights for 0"));
  EXPECT_THAT(message_of([] { mixture({1, 2}, {1, -1}); }), HasSubstr("-1 for data set 1"));
  EXPECT_THAT(message_of([] { mixture({1, 2}, {NAN, 1}); }), HasSubstr("nan for data set 0"));
  EXPECT_THAT(message_of([] { mixture({1, 0}, {1, 1}); }), HasSubstr("a size of 0 for data set 1"));
  EXPECT_THAT(message_of([] { mixture({1, 2}, {0, 0}); }), HasSubstr("a weight above 0"));
  EXPECT_THAT(message_of([] { mixture({1, 2}, {1e308, 1e308}); }), HasSubstr("sum is finite"));
  EXPECT_THAT(message_of([] { mixture({1}, {1}, -1); }), HasSubstr("got -1"));
}

// What a training of a language model writes: files with weights, and a resume in the middle, on
// another number of ranks.
class TokenMixture : public ::testing::Test {
 protected:
  static constexpr int64_t kContext = 4;

  // Window i of file f begins with the token 1000 f + 4 i.
  ConcatDataset<TokenFile> files(const TokenFileOptions& options = {}) const {
    std::vector<TokenFile> all;
    for (int64_t file = 0; file < 3; ++file) {
      const auto path = folder_ / std::to_string(file);
      const auto first = 1000 * file;
      std::vector<uint16_t> tokens;
      for (int64_t i = 0; i <= kContext * (file + 1) * 8; ++i)
        tokens.push_back(static_cast<uint16_t>(first + i));
      test::put_file(path, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2});
      all.emplace_back(path, TokenType::uint16, kContext, options);
    }
    return ConcatDataset(all);
  }

  // The first tokens of what ranks read, step by step, sorted within a step.
  static std::vector<std::vector<int64_t>> steps_of(const ConcatDataset<TokenFile>& text,
                                                    int ranks,
                                                    DataPosition* position,
                                                    int64_t until) {
    const torch::NoGradGuard no_grad;
    const auto order = mixture(text.sizes(), {4, 2, 1}, 48);
    const auto begin = *position;
    std::vector<std::vector<int64_t>> steps(static_cast<size_t>(until - begin.step));
    for (int rank = 0; rank < ranks; ++rank) {
      DataLoader<ConcatDataset<TokenFile>> loader(
          std::make_shared<const ConcatDataset<TokenFile>>(text),
          std::make_shared<DistributedSampler>(
              order, SamplerOptions{.num_replicas = ranks, .rank = rank, .seed = 3}),
          {.batch_size = 12 / ranks});
      if (begin.step > 0)
        loader.restore(begin);
      size_t step = 0;
      for (const auto& batch : loader.steps(until))
        test::add_numbers(batch.tokens.select(1, 0), &steps[step++]);
      *position = loader.position();
    }
    for (auto& step : steps)
      step = test::sorted(step);
    return steps;
  }

  test::TempFolder folder_;
};

TEST_F(TokenMixture, ReadsFilesByWeightAndGoesOnExactly) {
  const auto text = files();
  DataPosition unused;
  const auto whole = steps_of(text, 1, &unused, 10);
  int64_t of_file[3] = {};
  for (size_t step = 0; step < 4; ++step)  // one epoch
    for (const int64_t token : whole[step])
      ++of_file[token / 1000];
  EXPECT_THAT(of_file, ::testing::ElementsAre(27, 14, 7));  // 48 in 4 : 2 : 1
  for (int ranks = 1; ranks <= 4; ++ranks) {
    DataPosition position;
    auto steps = steps_of(text, ranks, &position, 6);
    const auto rest = steps_of(text, 5 - ranks, &position, 10);
    steps.insert(steps.end(), rest.begin(), rest.end());
    EXPECT_EQ(steps, whole) << ranks;
  }
}

TEST_F(TokenMixture, RandomWindowsAreTheSameAfterAResume) {
  const auto text = files({.random = true});
  DataPosition unused, position;
  const auto whole = steps_of(text, 1, &unused, 8);
  auto steps = steps_of(text, 3, &position, 3);
  const auto rest = steps_of(text, 2, &position, 8);
  steps.insert(steps.end(), rest.begin(), rest.end());
  EXPECT_EQ(steps, whole);
}

}  // namespace
}  // namespace muster
