// Gradients that a program keeps over zero_grad(), as PCGrad and GradNorm do, and parameters that
// are complex: with divided state both are what they are in one process, or are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "muster/base/mapped.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGD;

constexpr int64_t kKeptSteps = 4;

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  return mapped(parameters, [](const at::Tensor& parameter) { return parameter.grad(); });
}

at::Tensor squares(const at::Tensor& output) {
  return output.square().mean();
}

// Two tasks, each with its own backward: what the second takes away of the first is put back by
// half. The first one's gradients are kept as they are, without a copy.
template <class Forward>
void take_two_tasks(torch::optim::Optimizer& optimizer,
                    const std::vector<at::Tensor>& parameters,
                    const ShardedBatch& batch,
                    Forward&& forward) {
  optimizer.zero_grad();
  sharded_loss(forward(batch.x), batch.y).backward();
  const auto first = gradients_of(parameters);
  optimizer.zero_grad();
  squares(forward(batch.x)).backward();
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = parameters[i].grad() + 0.5 * first[i];
  optimizer.step();
}

std::vector<at::Tensor> two_tasks_alone() {
  at::set_num_threads(1);
  auto net = sharded_mlp();
  SGD optimizer(net->parameters(), 0.1);
  for (int64_t step = 0; step < kKeptSteps; ++step)
    take_two_tasks(optimizer, net->parameters(), mlp_batch(step), [&](const auto& x) {
      return net->forward(x);
    });
  return values_of(*net);
}

TEST(KeptGradients, TrainZero1AsOneProcess) {
  const auto expected = two_tasks_alone();
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    auto net = sharded_mlp();
    DistributedDataParallel model(net, group);
    ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group);
    for (int64_t step = 0; step < kKeptSteps; ++step)
      take_two_tasks(optimizer, net->parameters(), mlp_batch(step).of(group.rank(), 2), model);
    EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
  });
}

// The gradients of the parts are kept in the same way.
TEST(KeptGradients, OfPartsTrainZero2AsOneProcess) {
  const auto expected = two_tasks_alone();
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    auto net = sharded_mlp();
    ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group, {.gradients = true});
    const auto parts = optimizer.param_groups()[0].params();
    for (int64_t step = 0; step < kKeptSteps; ++step)
      take_two_tasks(optimizer, parts, mlp_batch(step).of(group.rank(), 2), [&](const auto& x) {
        return net->forward(x);
      });
    EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
  });
}

TEST(KeptGradients, OfPartsTrainAFullyShardedModelAsOneProcess) {
  const auto expected = two_tasks_alone();
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    FullySharded sharded(group);
    auto net = sharded_mlp();
    LayeredMlpImpl model(net, sharded);
    SGD optimizer(sharded.parameters(), 0.1);
    for (int64_t step = 0; step < kKeptSteps; ++step)
      take_two_tasks(
          optimizer, sharded.parameters(), mlp_batch(step).of(group.rank(), 2), [&](const auto& x) {
            return model.forward(x);
          });
    const auto whole = sharded.whole_parameters();
    EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
  });
}

// Those of the model's own parameters have no values, also where they are read after zero_grad().
TEST(KeptGradients, OfTheModelsOwnParametersAreAnErrorThatNamesTheClass) {
  run_ranks(2, [&](ProcessGroup& group) {
    auto zero2_net = sharded_mlp(), net = sharded_mlp();
    ShardedOptimizer<SGD> zero2(zero2_net->parameters(), 0.1, group, {.gradients = true});
    FullySharded sharded(group);
    LayeredMlpImpl model(net, sharded);
    SGD optimizer(sharded.parameters(), 0.1);
    const auto batch = mlp_batch(0).of(group.rank(), 2);
    EXPECT_THAT(failure_text([&] {
                  take_two_tasks(zero2, zero2_net->parameters(), batch, [&](const auto& x) {
                    return zero2_net->forward(x);
                  });
                }),
                HasSubstr("left to ShardedOptimizer"));
    EXPECT_THAT(failure_text([&] {
                  take_two_tasks(optimizer, net->parameters(), batch, [&](const auto& x) {
                    return model.forward(x);
                  });
                }),
                HasSubstr("sharded.parameters()"));
  });
}

// Phases and sizes: 12 and 4 complex weights.
struct WavesImpl : torch::nn::Module {
  WavesImpl() {
    const at::Tensor angles = torch::linspace(-2, 2.5, 12).view({4, 3});
    turn = register_parameter("turn", torch::polar(torch::ones({4, 3}), angles));
    shift = register_parameter("shift", torch::polar(torch::full({4}, 0.3), angles.select(1, 1)));
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::view_as_real(torch::matmul(x.to(torch::kComplexFloat), turn.t()) + shift);
  }
  at::Tensor turn, shift;
};
TORCH_MODULE(Waves);

template <class Forward, class Clip>
void train_waves(
    torch::optim::Optimizer& optimizer, int rank, int ranks, Forward&& forward, const Clip& clip) {
  at::set_num_threads(1);
  for (int64_t step = 0; step < kKeptSteps; ++step) {
    optimizer.zero_grad();
    squares(forward(mlp_batch(step).x.slice(1, 0, 3).chunk(ranks)[rank])).backward();
    clip();
    optimizer.step();
  }
}

template <class Kind>
void expect_complex_as_alone(const typename detail::OptionsOfOptimizer<Kind>::type& options) {
  constexpr double kNorm = 0.5;
  Waves alone;
  Kind plain(alone->parameters(), options);
  train_waves(
      plain,
      0,
      1,
      [&](const auto& x) { return alone->forward(x); },
      [&] { torch::nn::utils::clip_grad_norm_(alone->parameters(), kNorm); });
  run_ranks(2, [&](ProcessGroup& group) {
    const auto forward_of = [](auto& model) {
      return [&](const at::Tensor& x) {
        return model.forward(x);
      };
    };
    Waves first, second, third;
    DistributedDataParallel wrapped(first, group);
    ShardedOptimizer<Kind> zero1(first->parameters(), options, group);
    train_waves(zero1, group.rank(), 2, forward_of(wrapped), [&] {
      torch::nn::utils::clip_grad_norm_(first->parameters(), kNorm);
    });
    ShardedOptimizer<Kind> zero2(second->parameters(), options, group, {.gradients = true});
    train_waves(zero2, group.rank(), 2, forward_of(*second), [&] { zero2.clip_grad_norm(kNorm); });
    FullySharded sharded(group);
    auto model = sharded.wrap(third);
    Kind parts(sharded.parameters(), options);
    train_waves(parts, group.rank(), 2, forward_of(model), [&] { sharded.clip_grad_norm(kNorm); });
    const auto whole = sharded.whole_parameters();
    for (const Waves& got : {first, second, third})
      EXPECT_LE(farthest_apart(values_of(*alone), got->parameters()), 2e-6);
  });
}

TEST(ComplexParameters, TrainAsInOneProcess) {
  expect_complex_as_alone<SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_complex_as_alone<torch::optim::Adam>(torch::optim::AdamOptions(0.01));
}

}  // namespace
}  // namespace muster::testing
