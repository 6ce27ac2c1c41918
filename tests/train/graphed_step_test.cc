// GraphedStep on the CPU, where it is TrainStep with a graph's rules. gpu_probe.cc has graphs.
#include "muster/train/graphed_step.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/optim/optim.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/support/ranks.h"
#include "tests/train/two_layers.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

using Rows = Batch<at::Tensor>;

Rows batch_of(const at::Tensor& tensor, double weight = 1, bool last = true) {
  return {tensor, weight, last, tensor.size(0), {}};
}

optim::AdamW adamw(const std::vector<at::Tensor>& parameters, double rate) {
  return optim::AdamW(parameters, torch::optim::AdamWOptions(rate));
}

at::Tensor loss_of_all(TwoLayers& net, const at::Tensor& rows) {
  return net->forward(rows).square().mean();
}

// Returns why a GraphedStep with these options is refused.
std::string graph_refusal(const TrainStepOptions& options) {
  TwoLayers net;
  auto optimizer = adamw(net->parameters(), 0.1);
  return message_of_error([&] { GraphedStep(net, optimizer, options); });
}

std::string graph_refusal_of_model(ProcessGroup& group, const DdpOptions& options) {
  TwoLayers net;
  DistributedDataParallel model(net, group, options);
  auto optimizer = adamw(model.parameters(), 0.1);
  return message_of_error([&] { GraphedStep(model, optimizer); });
}

TEST(GraphedStep, RefusesWhatTheHostDecidesOn) {
  EXPECT_EQ(graph_refusal({}), "no error");
  EXPECT_THAT(graph_refusal({.on_nonfinite = OnNonfinite::skip}), HasSubstr("got skip or go_back"));
  EXPECT_THAT(graph_refusal({.on_nonfinite = OnNonfinite::go_back, .go_back = [] {}}),
              HasSubstr("got skip or go_back"));
  EXPECT_THAT(graph_refusal({.clip = [] { return torch::zeros({}); }}),
              HasSubstr("expected clip_norm or clip_value, got clip"));
  Precision fp16(c10::kCPU, "fp16"), bf16(c10::kCPU, "bf16");
  EXPECT_THAT(graph_refusal({.precision = &fp16}), HasSubstr("expected no loss scale, got fp16"));
  EXPECT_EQ(graph_refusal({.precision = &bf16}), "no error");
}

TEST(GraphedStep, RefusesOtherOptimizers) {
  TwoLayers net;
  torch::optim::AdamW optimizer(net->parameters());
  EXPECT_THAT(message_of_error([&] { GraphedStep(net, optimizer); }),
              HasSubstr("expected optimizers of muster::optim, got another"));
}

// A graph has the kernels of the base, and not what the class does in its step.
struct CountingAdamW : optim::AdamW {
  using Fused::Fused;
  at::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return Fused::step(std::move(closure));
  }
  int steps = 0;
};

TEST(GraphedStep, RefusesAStepOfADerivedClass) {
  TwoLayers net;
  CountingAdamW optimizer(net->parameters());
  EXPECT_THAT(message_of_error([&] { GraphedStep(net, optimizer); }),
              HasSubstr("expected optimizers of muster::optim, got another"));
}

TEST(GraphedStep, RefusesModelsWhoseReductionAsksTheHost) {
  run_ranks(1, [](ProcessGroup& group) {
    EXPECT_EQ(graph_refusal_of_model(group, {}), "no error");
    EXPECT_THAT(graph_refusal_of_model(group, {.find_unused_parameters = true}),
                HasSubstr("got find_unused_parameters"));
    EXPECT_THAT(graph_refusal_of_model(group, {.static_graph = true}),
                HasSubstr("got static_graph"));
    EXPECT_THAT(graph_refusal_of_model(group, {.verify_every = 3}), HasSubstr("got verify_every"));
    EXPECT_THAT(graph_refusal_of_model(group, {.bucket_cap_mb = BucketCap::automatic()}),
                HasSubstr("got BucketCap::automatic()"));
    EXPECT_THAT(graph_refusal_of_model(group, {.hook = bf16_compression()}),
                HasSubstr("got the hook "));
  });
}

// Such a model gets and lets go of its parameters in each step.
TEST(GraphedStep, RefusesAFullyShardedModel) {
  run_ranks(1, [](ProcessGroup& group) {
    TwoLayers net;
    FullySharded sharded(group);
    const auto model = sharded.wrap(net);
    auto optimizer = adamw(sharded.parameters(), 0.1);
    EXPECT_THAT(message_of_error([&] { GraphedStep(net, optimizer, {.group = group}); }),
                HasSubstr("got a fully sharded one"));
  });
}

TEST(GraphedStep, TakesBatchesLikeTheFirstAndSmallerOnes) {
  TwoLayers net;
  auto optimizer = adamw(net->parameters(), 0.1);
  GraphedStep step(net, optimizer);
  const auto ones = [](int64_t rows, int64_t columns) {
    return torch::ones({rows, columns}, torch::kDouble);
  };
  const auto take = [&](const Rows& batch) {
    return message_of_error(
        [&] { step(batch, [&](const Rows& now) { return loss_of_all(net, now); }); });
  };
  EXPECT_EQ(take(batch_of(ones(4, 4))), "no error");
  EXPECT_EQ(take(batch_of(ones(3, 4))), "no error");
  EXPECT_EQ(take(batch_of(ones(4, 4), 0.5)), "no error");
  EXPECT_THAT(take(batch_of(ones(5, 4))), HasSubstr("or with fewer rows, got Double [5, 4]"));
  EXPECT_THAT(take(batch_of(ones(4, 5))), HasSubstr("expected batches like the first"));
  EXPECT_THAT(take(batch_of(ones(4, 4).to(torch::kFloat))), HasSubstr("got Float [4, 4]"));
  EXPECT_THAT(take(batch_of(ones(4, 4), 1, false)), HasSubstr("gradient accumulation"));
  EXPECT_EQ(step.steps(), 3);
  EXPECT_EQ(step.replays(), 0);
}

// The rate 0.1 is no float32 number.
TEST(GraphedStep, HasTheBitsOfTrainStepWithARateOfFloat32) {
  const auto trained = [](auto&& train) {
    TwoLayers net = seeded_layers();
    train(net, fixed_data(4));
    return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  };
  const auto plain = [&](double rate) {
    return trained([&](TwoLayers& net, const at::Tensor& rows) {
      auto optimizer = adamw(net->parameters(), rate);
      TrainStep step(net, optimizer, {.clip_norm = 1.0});
      for (int i = 0; i < 5; ++i)
        step(batch_of(rows), [&] { return loss_of_all(net, rows); });
    });
  };
  const auto graphed = trained([&](TwoLayers& net, const at::Tensor& rows) {
    auto optimizer = adamw(net->parameters(), 0.1);
    GraphedStep step(net, optimizer, {.clip_norm = 1.0});
    for (int i = 0; i < 5; ++i)
      step(batch_of(rows), [&](const Rows& now) { return loss_of_all(net, now); });
  });
  EXPECT_TRUE(torch::equal(graphed, plain(static_cast<double>(0.1F))));
  EXPECT_FALSE(torch::equal(graphed, plain(0.1))) << "or this test shows nothing";
}

TEST(GraphedStep, KnowsBatchesOfTensors) {
  struct Images {
    at::Tensor pixels, labels;
  };
  struct Named {
    at::Tensor pixels;
    std::string name;
  };
  static_assert(is_of_tensors<at::Tensor>());
  static_assert(is_of_tensors<Images>());
  static_assert(is_of_tensors<std::tuple<at::Tensor, std::vector<at::Tensor>>>());
  static_assert(!is_of_tensors<Named>());
  static_assert(!is_of_tensors<std::tuple<at::Tensor, int64_t>>());
}

}  // namespace
}  // namespace muster::testing
