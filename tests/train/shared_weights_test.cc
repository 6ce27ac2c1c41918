// Models whose layers share a weight, with the list that LibTorch gives for them: it has the weight
// twice.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/checkpoint/training/checkpoints.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/train/clip.h"
#include "muster/train/ema.h"
#include "muster/train/precision.h"
#include "muster/train/step.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"
#include "tests/train/oracle.h"
#include "tests/train/two_layers.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor weight;
};
TORCH_MODULE(Head);

// 36 weights, which the embedding and the head share.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : head(embedding->weight) {
    register_module("embedding", embedding);
    register_module("head", head);
    torch::nn::init::constant_(embedding->weight, 0.5);
  }
  at::Tensor forward(const at::Tensor& words) { return embedding(words).mm(head->weight.t()); }
  torch::nn::Embedding embedding{4, 9};
  Head head;
};
TORCH_MODULE(Tied);

Tied with_gradients_of_one() {
  Tied net;
  net->embedding->weight.mutable_grad() = torch::ones({4, 9});
  return net;
}

constexpr const char* kTwice =
    "got 'embedding.weight' twice, as LibTorch's net->parameters() has a weight";
constexpr const char* kNextStep =
    "make the optimizer of model.parameters() or muster::distinct_parameters";

TEST(SharedWeights, LibTorchsListHasThemTwice) {
  EXPECT_EQ(Tied()->parameters().size(), 2U);
  EXPECT_EQ(distinct_parameters(*Tied()).size(), 1U);
}

TEST(SharedWeights, TheNormCountsThemOnce) {
  for (const double norm_type : {1.0, 2.0}) {
    const Tied twice = with_gradients_of_one(), once = with_gradients_of_one();
    const auto got = clip_grad_norm(twice->parameters(), 1.0, norm_type);
    const auto expected =
        torch::nn::utils::clip_grad_norm_(distinct_parameters(*once), 1.0, norm_type);
    EXPECT_EQ(got.item<double>(), expected) << norm_type;
    EXPECT_TRUE(twice->head->weight.grad().equal(once->head->weight.grad())) << norm_type;
  }
  EXPECT_EQ(grad_norm(with_gradients_of_one()->parameters()).item<double>(), 6);
}

TEST(SharedWeights, TheLossScaleDividesThemOnce) {
  const Tied net = with_gradients_of_one();
  Precision precision(at::kCPU, {.type = "fp16", .init_scale = 4});
  precision.unscale(net->parameters());
  EXPECT_TRUE(net->head->weight.grad().equal(torch::full({4, 9}, 0.25)));
}

TEST(SharedWeights, OptimizersThatHaveThemTwiceAreRefused) {
  run_ranks(1, [](ProcessGroup& group) {
    Tied net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto of_step = message_of_error([&] { TrainStep(net, optimizer); });
    EXPECT_THAT(of_step, HasSubstr(kTwice));
    EXPECT_THAT(of_step, HasSubstr(kNextStep));
    const test::TempFolder folder;
    Checkpoints checkpoints(group, {.folder = folder.path()});
    checkpoints.add("model", net);
    const auto of_checkpoints = message_of_error([&] { checkpoints.add("optimizer", optimizer); });
    EXPECT_THAT(of_checkpoints, HasSubstr(kTwice));
    EXPECT_THAT(of_checkpoints, HasSubstr(kNextStep));
    net(torch::tensor({1, 2})).sum().backward();
    for (const char* type : {"fp32", "fp16"}) {
      Precision precision(at::kCPU, type);
      EXPECT_THAT(message_of_error([&] { precision.step(optimizer); }),
                  HasSubstr("got a parameter of shape [4, 9] twice"));
    }
  });
}

TEST(SharedWeights, TwoOptimizersOfOneStepMayNotBothHaveThem) {
  Tied net;
  torch::optim::SGD of_embedding(net->embedding->parameters(), 0.1),
      of_head(net->head->parameters(), 0.1);
  EXPECT_THAT(message_of_error([&] { TrainStep(net, {&of_embedding, &of_head}); }),
              HasSubstr(kTwice));
}

// A step, an average and a checkpoint of the right list, against a loop of one's own.
TEST(SharedWeights, AreTrainedOnceByTheRightList) {
  const auto words = torch::tensor({0, 1, 3, 3});
  Tied plain;
  torch::optim::SGD by_hand(distinct_parameters(*plain), 0.1);
  for (int i = 0; i < 3; ++i) {
    by_hand.zero_grad();
    plain(words).square().mean().backward();
    by_hand.step();
  }
  run_ranks(2, [&](ProcessGroup& group) {
    Tied net;
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    Ema ema(*net, 0.5);
    TrainStep step(model, optimizer, {.ema = &ema});
    for (int i = 0; i < 3; ++i)
      step(OneBatch{}, [&] { return model(words).square().mean(); });
    EXPECT_TRUE(torch::allclose(net->head->weight, plain->head->weight, 1e-6, 1e-7));
    EXPECT_EQ(ema.averages().size(), 2U);
    EXPECT_TRUE(ema.averages()[0].second.is_same(ema.averages()[1].second));
  });
}

}  // namespace
}  // namespace muster::testing
