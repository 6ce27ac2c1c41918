// What a TrainStep refuses where the ranks would train apart, or nothing.
#include "muster/train/step_arguments.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/comm/job_ranks.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/train/step.h"
#include "tests/support/ranks.h"
#include "tests/train/two_layers.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

TEST(StepArguments, AModelThatNobodyReducesIsRefusedOnSeveralRanks) {
  run_ranks(2, [](ProcessGroup& group) {
    TwoLayers net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    EXPECT_THAT(
        message_of_error([&] { TrainStep(net, optimizer, {.group = group}); }),
        HasSubstr("averaged over the 2 ranks, got 'fc1.weight', which no wrapped model has; wrap"));
    EXPECT_EQ(
        message_of_error([&] { TrainStep(net, optimizer, {.group = group, .unreduced = true}); }),
        "no error");
  });
}

TEST(StepArguments, ABareModelBesideAWrappedOneIsRefused) {
  run_ranks(2, [](ProcessGroup& group) {
    TwoLayers net, bare;
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(model.parameters(), 0.1), other(bare->parameters(), 0.1);
    EXPECT_THAT(message_of_error([&] { TrainStep({model, bare}, {&optimizer, &other}); }),
                HasSubstr("got 'fc1.weight', which no wrapped model has"));
    for (auto& parameter : bare->parameters())
      parameter.requires_grad_(false);
    EXPECT_EQ(message_of_error([&] { TrainStep({model, bare}, {&optimizer, &other}); }), "no error")
        << "a frozen one drifts from nobody";
  });
}

// A temperature of the loss, which belongs to no model.
TEST(StepArguments, AParameterOutsideOfTheModelsIsRefusedOnSeveralRanks) {
  run_ranks(2, [](ProcessGroup& group) {
    TwoLayers net;
    DistributedDataParallel model(net, group);
    auto parameters = model.parameters();
    parameters.push_back(torch::ones({1}).requires_grad_());
    torch::optim::SGD optimizer(parameters, 0.1);
    EXPECT_THAT(
        message_of_error([&] { TrainStep(model, optimizer); }),
        HasSubstr(
            "got a parameter of shape [1] that the models do not have, which no wrapped model"));
    GradientReducer of_loss({{"temperature", parameters.back()}}, group);
    EXPECT_EQ(message_of_error([&] { TrainStep(model, optimizer); }), "no error")
        << "now it is reduced too";
  });
}

TEST(StepArguments, IgnoredParametersAreEachRanksOwn) {
  run_ranks(2, [](ProcessGroup& group) {
    TwoLayers net;
    DistributedDataParallel model(net, group, {.ignored_parameters = {"fc1.weight"}});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    EXPECT_EQ(message_of_error([&] { TrainStep(model, optimizer); }), "no error");
  });
}

TEST(StepArguments, AnOptimizerOfAnotherModelIsRefused) {
  TwoLayers net, old;
  torch::optim::SGD optimizer(old->parameters(), 0.1), own(net->parameters(), 0.1);
  EXPECT_THAT(message_of_error([&] { TrainStep(net, optimizer); }),
              HasSubstr("got 4 parameters in optimizer 0, of which the models have none"));
  EXPECT_THAT(message_of_error([&] { TrainStep(net, {&own, &optimizer}); }),
              HasSubstr("in optimizer 1"));
}

// Of 20 elements, rank 0 has 10 of the weight, and nothing of the bias.
TEST(StepArguments, ARankMayHaveNoPieceOfWhatAnOptimizerSteps) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear net(4, 4), other(4, 4);
    for (const auto& parameter : net->parameters())
      parameter.data().fill_(0.5);
    FullySharded sharded(group);
    auto model = sharded.wrap(net);
    torch::optim::SGD of_weight(
        sharded.parameters({torch::optim::OptimizerParamGroup({net->weight})}), 0.1),
        of_bias(sharded.parameters({torch::optim::OptimizerParamGroup({net->bias})}), 0.1);
    EXPECT_EQ(of_bias.param_groups()[0].params().empty(), group.rank() == 0);
    EXPECT_EQ(message_of_error([&] { TrainStep(net, {&of_weight, &of_bias}, {.group = group}); }),
              "no error");
    torch::optim::SGD of_nothing(std::vector<torch::Tensor>(), 0.1);
    EXPECT_THAT(message_of_error([&] { TrainStep(other, of_nothing, {.group = group}); }),
                HasSubstr("got 0 parameters in optimizer 0"));
  });
}

TEST(StepArguments, OneRankReducesNothing) {
  EXPECT_EQ(job_ranks(), 1);
  TwoLayers net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  EXPECT_EQ(message_of_error([&] { TrainStep(net, optimizer); }), "no error");
}

}  // namespace
}  // namespace muster::testing
