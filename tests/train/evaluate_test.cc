#include "muster/train/evaluate.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "muster/base/error.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

struct RankContext {  // what evaluate() asks of a muster::Context
  ProcessGroup& group;
  ProcessGroup& process_group() { return group; }
};

TEST(Evaluate, CountsEverySampleOnceWhateverTheRanks) {
  const TensorDataset data(torch::arange(11).to(torch::kFloat).unsqueeze(1), torch::arange(11));
  for (const int ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      DistributedSampler sampler(
          11, {.num_replicas = group.size(), .rank = group.rank(), .shuffle = false, .pad = false});
      DataLoader loader(data, sampler, {.batch_size = 2});
      RankContext ctx{group};
      torch::nn::Identity net;
      const double each =
          evaluate(ctx, net, loader, [](auto& net, const auto& batch) { return net(batch.features); });
      EXPECT_DOUBLE_EQ(each, 5);
      const double mean =
          evaluate(ctx, net, loader, [](auto& net, const auto& batch) { return net(batch.features).mean(); });
      EXPECT_DOUBLE_EQ(mean, 5);
    });
  }
}

TEST(Evaluate, AllRanksHaveRankZerosBuffersAndModulesTheirModes) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(2), torch::nn::Dropout(0.9), torch::nn::Dropout(0.9));
    net[2]->eval();
    net->buffers()[0].fill_(group.rank() == 0 ? 3 : 7);
    {
      const EvaluationMode mode(*net, group);
      EXPECT_FALSE(net->is_training());
      EXPECT_FALSE(net[1]->is_training());
      EXPECT_FALSE(torch::GradMode::is_enabled());
      EXPECT_EQ(net->buffers()[0][0].item<double>(), 3);
    }
    EXPECT_TRUE(torch::GradMode::is_enabled());
    EXPECT_TRUE(net[1]->is_training());
    EXPECT_FALSE(net[2]->is_training());
  });
}

TEST(Evaluate, RepeatedSamplesAndScoresOfAnotherShapeAreRefused) {
  const TensorDataset data(torch::zeros({3, 4}), torch::arange(3));
  run_ranks(2, [&](ProcessGroup& group) {
    RankContext ctx{group};
    torch::nn::Identity net;
    DistributedSampler padded(3, {.num_replicas = 2, .rank = group.rank(), .shuffle = false});
    DataLoader loader(data, padded, {.batch_size = 2});
    const auto refusal = [&](const auto& score) {
      try {
        evaluate(ctx, net, loader, score);
        return std::string("counted");
      } catch (const Error& error) {
        return std::string(error.what());
      }
    };
    EXPECT_THAT(refusal([](auto&, const auto& batch) { return batch.labels; }),
                HasSubstr("expected each of 3 samples once, got 4 on all ranks together"));
    EXPECT_THAT(refusal([](auto&, const auto& batch) { return batch.features; }),
                HasSubstr("got shape [2, 4]"));
  });
}

TEST(Evaluate, WithoutASampleItIsNoNumber) {
  run_ranks(2, [](ProcessGroup& group) { EXPECT_TRUE(std::isnan(SampleMeans().over(group, 1))); });
}

}  // namespace
}  // namespace muster::testing
