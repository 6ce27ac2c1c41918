// A parameter that is in a model twice, or in two wrapped models.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

TEST(SharedParameters, TwoWrappedModelsMayShareAnEncoder) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear encoder(3, 3), first(3, 2), second(3, 2);
    const auto with = [&](const torch::nn::Linear& head) {
      return torch::nn::Sequential(encoder, head);
    };
    DistributedDataParallel one(with(first), group), other(with(second), group);
    for (int step = 0; step < 3; ++step) {
      for (auto* model : {&one, &other}) {
        (*model)(batch_of(group.rank(), step)).sum().backward();
        EXPECT_TRUE(same_everywhere(group, model->parameters()));
        drop_gradients(*model->module());
      }
    }
  });
}

// One backward of both: the encoder's gradient is the mean of the sums.
TEST(SharedParameters, TwoWrappedModelsWithAnEncoderInOneBackward) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear encoder(3, 3), first(3, 2), second(3, 2);
    const auto with = [&](const torch::nn::Linear& head) {
      return torch::nn::Sequential(encoder, head);
    };
    DistributedDataParallel one(with(first), group);
    one(batch_of(group.rank())).sum().backward();  // its buckets are there before the other's
    drop_gradients(*one.module());
    DistributedDataParallel other(with(second), group);
    for (int step = 0; step < 3; ++step) {
      const auto x = batch_of(group.rank(), step);
      const auto weights = {encoder->weight, first->weight, second->weight};
      const auto mean = mean_gradients(
          group, one.module()->forward(x).sum() + other.module()->forward(x).sum(), weights);
      (one(x).sum() + other(x).sum()).backward();
      expect_gradients(weights, mean);
      drop_gradients(*one.module());
      drop_gradients(*other.module());
    }
  });
}

// The first has its gradients in buckets by then.
TEST(SharedParameters, AnotherWrappedBetweenForwardAndACommonBackwardIsAnError) {
  run_ranks(1, [](ProcessGroup& group) {
    torch::nn::Linear encoder(3, 3);
    DistributedDataParallel one(torch::nn::Sequential(encoder, torch::nn::Linear(3, 2)), group);
    const auto first = one(batch_of(0)).sum();
    DistributedDataParallel other(torch::nn::Sequential(encoder, torch::nn::Linear(3, 2)), group);
    EXPECT_THROW((first + other(batch_of(0)).sum()).backward(), Error);
  });
}

TEST(SharedParameters, ASharedWeightIsOneParameter) {
  run_ranks(1, [](ProcessGroup& group) {
    torch::nn::Linear layer(3, 3);
    torch::nn::Sequential net(layer, layer);
    DistributedDataParallel model(net, group);
    EXPECT_EQ(net->parameters().size(), 4U);
    EXPECT_EQ(model.parameters().size(), 2U);
  });
}

}  // namespace
}  // namespace muster::testing
