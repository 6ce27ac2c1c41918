// A layer that several stages of a pipeline have: as a layer that one process uses several times,
// or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/strings.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/pipeline/stages.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor shared_layers_loss(const at::Tensor& y, const at::Tensor& target) {
  return torch::mse_loss(y, target);
}

// One layer is the second of four, and the last.
struct LayerTwice {
  LayerTwice() {
    torch::manual_seed(2);
    first = torch::nn::Linear(4, 4);
    layer = torch::nn::Linear(4, 4);
    net->push_back(first);
    net->push_back(layer);
    net->push_back(torch::nn::Tanh());
    net->push_back(layer);
  }
  torch::nn::Linear first = nullptr, layer = nullptr;
  torch::nn::Sequential net;
};

// The gradient of the whole batch, clipped, and the norm before.
std::pair<LayerTwice, double> layer_twice_alone(const at::Tensor& x, const at::Tensor& target) {
  LayerTwice alone;
  shared_layers_loss(alone.net->forward(x), target).backward();
  const std::vector<at::Tensor> parameters{
      alone.first->weight, alone.first->bias, alone.layer->weight, alone.layer->bias};
  return {alone, torch::nn::utils::clip_grad_norm_(parameters, 0.01)};
}

TEST(PipelineSharedLayers, ALayerOfTwoStagesIsRefusedUntied) {
  for (const auto& begins : {std::vector<size_t>{3}, {1}}) {
    std::vector<LayerTwice> models(2);
    const bool is_shared = begins[0] == 3;
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      const auto stages = cut_into_stages(models[group.rank()].net, cut_at(4, begins));
      Pipeline pipeline({stages[group.rank()]},
                        group,
                        {.schedule = one_f_one_b(2, 2), .loss = shared_layers_loss});
      pipeline.evaluate(torch::ones({4, 4}), torch::ones({4, 4}));
      pipeline.step(torch::ones({4, 4}), torch::ones({4, 4}));
    });
    for (const auto& failure : failures) {
      const std::string text = message_of(failure);
      const ::testing::Matcher<std::string> refusal =
          AllOf(HasSubstr("got '1.weight', which stages 0, 1 share, untied (rank 0)"),
                HasSubstr("got '3.weight', which stages 0, 1 share, untied (rank 1)"),
                HasSubstr("call pipeline.tie(weight) on all ranks"));
      EXPECT_THAT(text, is_shared ? refusal : ::testing::Matcher<std::string>(""));
    }
  }
}

// Every rank has the whole model, and so gives the weight also where its stage has none.
TEST(PipelineSharedLayers, ATiedLayerOfTwoStagesTrainsAndClipsAsInOneProcess) {
  at::set_num_threads(1);
  torch::manual_seed(3);
  const auto x = torch::randn({8, 4}), target = torch::randn({8, 4});
  const auto expectation = layer_twice_alone(x, target);
  const LayerTwice& alone = expectation.first;
  std::vector<LayerTwice> models(3);
  run_ranks(3, [&](ProcessGroup& group) {
    const LayerTwice& mine = models[group.rank()];
    const auto stages = cut_into_stages(mine.net, cut_at(4, {1, 3}));
    Pipeline pipeline(
        {stages[group.rank()]}, group, {.schedule = one_f_one_b(3, 2), .loss = shared_layers_loss});
    pipeline.tie(mine.layer->weight);
    pipeline.tie(mine.layer->bias);
    pipeline.step(x, target);
    EXPECT_NEAR(pipeline.clip_grad_norm(0.01).item<double>(), expectation.second, 1e-6);
    const bool is_first = group.rank() == 0;
    const auto& got = is_first ? mine.first : mine.layer;
    const auto& expected = is_first ? alone.first : alone.layer;
    EXPECT_TRUE(got->weight.grad().allclose(expected->weight.grad(), 1e-4, 1e-7));
    EXPECT_TRUE(got->bias.grad().allclose(expected->bias.grad(), 1e-4, 1e-7));
    EXPECT_EQ(pipeline.gather_parameters().size(), mine.net->named_parameters().size());
  });
}

// Stages of one rank have the layer itself, and a new cut takes the place of an earlier one.
TEST(PipelineSharedLayers, NothingIsUntiedOnOneRankNorAfterAnotherCut) {
  LayerTwice model;
  cut_into_stages(model.net, cut_at(4, {3}));
  run_ranks(1, [&](ProcessGroup& group) {
    const auto stages = cut_into_stages(model.net, cut_at(4, {3}));
    Pipeline pipeline({stages[0], stages[1]},
                      group,
                      {.schedule = interleaved(1, 2, 2), .loss = shared_layers_loss});
    pipeline.step(torch::ones({4, 4}), torch::ones({4, 4}));
  });
  std::vector<LayerTwice> models(2);
  run_ranks(2, [&](ProcessGroup& group) {
    cut_into_stages(models[group.rank()].net, cut_at(4, {3}));
    const auto stages = cut_into_stages(models[group.rank()].net, cut_at(4, {1}));
    Pipeline pipeline(
        {stages[group.rank()]}, group, {.schedule = one_f_one_b(2, 2), .loss = shared_layers_loss});
    pipeline.step(torch::ones({4, 4}), torch::ones({4, 4}));
  });
}

// Copies of a frozen weight stay equal, until they are trained.
TEST(PipelineSharedLayers, AFrozenLayerOfTwoStagesIsRefusedOnceItIsTrained) {
  std::vector<LayerTwice> models(2);
  const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
    const LayerTwice& mine = models[group.rank()];
    const auto freeze = [&](bool is_frozen) {
      for (const at::Tensor& parameter : mine.layer->parameters())
        parameter.requires_grad_(!is_frozen);
    };
    freeze(true);
    const auto stages = cut_into_stages(mine.net, cut_at(4, {3}));
    Pipeline pipeline(
        {stages[group.rank()]}, group, {.schedule = one_f_one_b(2, 2), .loss = shared_layers_loss});
    pipeline.step(torch::ones({4, 4}), torch::ones({4, 4}));
    EXPECT_TRUE(group.rank() == 1 || mine.first->weight.grad().defined());
    freeze(false);
    pipeline.step(torch::ones({4, 4}), torch::ones({4, 4}));
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("got '1.weight', which stages 0, 1 share, untied"));
}

// Stages that are made by hand of layers that were cut before are no stages of that cut.
TEST(PipelineSharedLayers, AnEarlierCutSaysNothingOfStagesMadeByHand) {
  std::vector<LayerTwice> models(2);
  run_ranks(2, [&](ProcessGroup& group) {
    const LayerTwice& mine = models[group.rank()];
    cut_into_stages(mine.net, cut_at(4, {3}));
    const torch::nn::Sequential stage(group.rank() == 0 ? mine.first : mine.layer);
    Pipeline pipeline({stage}, group, {.schedule = one_f_one_b(2, 2), .loss = shared_layers_loss});
    pipeline.step(torch::ones({4, 4}), torch::ones({4, 4}));
  });
}

}  // namespace
}  // namespace muster::testing
