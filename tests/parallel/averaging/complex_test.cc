// Complex parameters beside real ones: every average of this folder gives both parts of their mean.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "muster/parallel/averaging/diloco.h"
#include "muster/parallel/averaging/gossip.h"
#include "muster/parallel/averaging/local_sgd.h"
#include "muster/parallel/averaging/parameter_client.h"
#include "muster/parallel/averaging/parameter_server.h"
#include "muster/train/clip.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using Number = c10::complex<double>;

std::vector<at::Tensor> parameters_of_a_rank() {
  return {torch::full({2, 3}, Number(1, -2), torch::kComplexDouble).requires_grad_(),
          torch::full({3}, 4.0, torch::kDouble).requires_grad_(),
          torch::full({5}, c10::complex<float>(0, 1), torch::kComplexFloat).requires_grad_()};
}

// A gradient of rank + 1 in each number, and as much i in complex ones.
at::Tensor gradient_of(const at::Tensor& parameter, int rank) {
  const double part = rank + 1;
  return parameter.is_complex() ? torch::full_like(parameter, Number(part, part))
                                : torch::full_like(parameter, part);
}

void set_gradients(const std::vector<at::Tensor>& parameters, int rank) {
  for (const at::Tensor& parameter : parameters)
    parameter.mutable_grad() = gradient_of(parameter.detach(), rank);
}

void step_alone(const std::vector<at::Tensor>& parameters, int rank) {
  set_gradients(parameters, rank);
  torch::optim::SGD(parameters, 0.5).step();
}

// After a step of 0.5 along the gradient of "rank" 0.5, the mean of ranks 0 and 1.
void expect_moved_by_the_mean(const std::vector<at::Tensor>& parameters) {
  const auto begun = parameters_of_a_rank();
  for (size_t i = 0; i < begun.size(); ++i) {
    const at::Tensor mean =
        (gradient_of(begun[i].detach(), 0) + gradient_of(begun[i].detach(), 1)) / 2;
    EXPECT_TRUE(parameters[i].allclose(begun[i] - 0.5 * mean))
        << "parameter " << i << parameters[i];
  }
}

// What an average does after the optimizer's step, with parameters of both ranks.
using Average = std::function<void(const std::vector<at::Tensor>&, ProcessGroup&)>;

struct Kind {
  const char* name;
  Average begin_and_step;
};

void PrintTo(const Kind& kind, std::ostream* stream) {
  *stream << kind.name;
}

template <class Averaging, class... Options>
void step_with(const std::vector<at::Tensor>& parameters,
               ProcessGroup& group,
               const Options&... options) {
  Averaging averaging(parameters, group, options...);
  step_alone(parameters, group.rank());
  averaging.step();
}

class ComplexAverage : public ::testing::TestWithParam<Kind> {};

TEST_P(ComplexAverage, IsOfBothParts) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto parameters = parameters_of_a_rank();
    GetParam().begin_and_step(parameters, group);
    expect_moved_by_the_mean(parameters);
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         ComplexAverage,
                         ::testing::Values(Kind{"LocalSGD",
                                                [](const auto& parameters, ProcessGroup& group) {
                                                  step_with<LocalSGD>(parameters,
                                                                      group,
                                                                      LocalSGDOptions{.every = 1});
                                                }},
                                           Kind{"DiLoCo",
                                                [](const auto& parameters, ProcessGroup& group) {
                                                  step_with<DiLoCo>(
                                                      parameters,
                                                      group,
                                                      DiLoCoOptions{.every = 1,
                                                                    .learning_rate = 1,
                                                                    .momentum = 0,
                                                                    .nesterov = false});
                                                }},
                                           Kind{"GossipAverage",
                                                [](const auto& parameters, ProcessGroup& group) {
                                                  step_with<GossipAverage>(parameters, group);
                                                }}),
                         [](const auto& info) { return std::string(info.param.name); });

// Two workers without staleness: one update with the mean of their gradients.
TEST(ComplexParameterServer, StepsOnTheMeanOfBothParts) {
  run_ranks(3, [](ProcessGroup& group) {
    const auto parameters = parameters_of_a_rank();
    const ParameterServerOptions options{.servers = 1, .staleness = 0};
    if (keeps_parameters(group, options)) {
      ParameterServer server(
          parameters,
          group,
          [](auto shard) { return std::make_unique<torch::optim::SGD>(shard, 0.5); },
          options);
      server.serve();
      expect_moved_by_the_mean(parameters);
    } else {
      ParameterClient client(parameters, group, options);
      client.pull();
      set_gradients(parameters, group.rank() - 1);
      client.push();
      client.pull();
      expect_moved_by_the_mean(parameters);
      client.finish();
    }
  });
}

// The norm of 6 · |1 + i|², 3 · 1 and 5 · |1 + i|² is the root of 25.
TEST(ComplexClipping, IsByTheNormOfBothParts) {
  const auto parameters = parameters_of_a_rank();
  set_gradients(parameters, 0);
  EXPECT_NEAR(clip_grad_norm(parameters, 2.5).item<double>(), 5, 1e-6);
  for (const at::Tensor& parameter : parameters)
    EXPECT_TRUE(parameter.grad().allclose(gradient_of(parameter.detach(), 0) / 2, 1e-5));
}

}  // namespace
}  // namespace muster::testing
