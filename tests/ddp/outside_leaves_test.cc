// Trained tensors that no wrapped model has: ranks that train them apart are told of it, once, and
// programs that mean it or average by hand are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using torch::nn::Sequential;
using torch::optim::SGD;

using Model = DistributedDataParallel<Sequential>;
constexpr int kOutsideSteps = 6;
constexpr const char* kOutside = "expected every trained tensor of a backward to be a parameter";

std::string printed_by_two(const std::function<void(ProcessGroup&)>& program) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, program);
  return ::testing::internal::GetCapturedStderr();
}

std::vector<at::Tensor> with(std::vector<at::Tensor> parameters, const at::Tensor& another) {
  parameters.push_back(another);
  return parameters;
}

// A model, and the scale of its outputs, which the loss has of its own.
struct ScaledProgram {
  std::function<at::Tensor(int rank)> scale = [](int) {
    return torch::ones({1}).requires_grad_();
  };
  std::function<void(ProcessGroup&, const at::Tensor& scale)> before_step = [](ProcessGroup&,
                                                                               const at::Tensor&) {
  };
  DdpOptions options = {};

  void operator()(ProcessGroup& group) const {
    Model model(two_layers(), group, options);
    const at::Tensor factor = scale(group.rank());
    SGD optimizer(with(model.parameters(), factor), 0.01);
    for (int step = 0; step < kOutsideSteps; ++step) {
      optimizer.zero_grad();
      square_loss(model(batch_of(group.rank(), step % 2)) * factor).backward();
      before_step(group, factor);
      optimizer.step();
    }
  }
};

TEST(OutsideLeaves, TheScaleOfALossIsSaidOnce) {
  const auto printed = printed_by_two(ScaledProgram());
  EXPECT_EQ(times(printed, kOutside), 1U) << printed;
  EXPECT_THAT(printed, HasSubstr("got a tensor of shape [1] outside of all"));
}

TEST(OutsideLeaves, ABareModelBeforeAWrappedOneIsSaid) {
  const auto printed = printed_by_two([](ProcessGroup& group) {
    Sequential encoder = two_layers();
    Model head(Sequential(torch::nn::Linear(2, 1)), group);
    std::vector<at::Tensor> parameters = head.parameters();
    for (const at::Tensor& parameter : encoder->parameters())
      parameters.push_back(parameter);
    SGD optimizer(parameters, 0.01);
    for (int step = 0; step < kOutsideSteps; ++step) {
      optimizer.zero_grad();
      square_loss(head(encoder->forward(batch_of(group.rank())))).backward();
      optimizer.step();
    }
  });
  EXPECT_THAT(printed, HasSubstr("got 4 tensors, one of shape ["));
}

TEST(OutsideLeaves, ATensorOfEverySecondBackwardIsSaid) {
  const auto printed = printed_by_two([](ProcessGroup& group) {
    Model model(two_layers(), group);
    const at::Tensor scale = torch::ones({1}).requires_grad_();
    SGD optimizer(with(model.parameters(), scale), 0.01);
    for (int step = 0; step < kOutsideSteps; ++step) {
      optimizer.zero_grad();
      const auto output = model(batch_of(group.rank()));
      square_loss(step % 2 == 0 ? output * scale : output).backward();
      optimizer.step();
    }
  });
  EXPECT_EQ(times(printed, kOutside), 1U) << printed;
}

TEST(OutsideLeaves, OneThatIsAveragedByHandIsNot) {
  const auto printed =
      printed_by_two(ScaledProgram{.before_step = [](ProcessGroup& group, const at::Tensor& scale) {
        group.all_reduce(scale.mutable_grad(), ReduceOp::avg);
      }});
  EXPECT_THAT(printed, Not(HasSubstr(kOutside)));
}

TEST(OutsideLeaves, OnesThatDifferFromTheBeginningAreNot) {
  const auto printed = printed_by_two(ScaledProgram{.scale = [](int rank) {
    return torch::full({1}, 1 + rank).to(torch::kFloat).requires_grad_();
  }});
  EXPECT_THAT(printed, Not(HasSubstr(kOutside)));
}

TEST(OutsideLeaves, NothingIsSaidWithoutTheChecks) {
  EXPECT_THAT(printed_by_two(ScaledProgram{.options = {.check_steps = false}}),
              Not(HasSubstr(kOutside)));
}

TEST(OutsideLeaves, InputsWithGradientsAreNone) {
  const auto printed = printed_by_two([](ProcessGroup& group) {
    Model model(two_layers(), group);
    SGD optimizer(model.parameters(), 0.01);
    for (int step = 0; step < kOutsideSteps; ++step) {
      const at::Tensor noise = torch::zeros({2, 3}).requires_grad_();
      optimizer.zero_grad();
      square_loss(model(batch_of(group.rank()) + noise)).backward();
      optimizer.step();
    }
  });
  EXPECT_THAT(printed, Not(HasSubstr(kOutside)));
}

// Ignored parameters are trained too.
void train_in_one_backward(Model& encoder, Model& head, int rank) {
  SGD first(encoder.parameters(), 0.01);
  SGD second(head.module()->parameters(), 0.01);
  for (int step = 0; step < kOutsideSteps; ++step) {
    first.zero_grad();
    second.zero_grad();
    square_loss(head(encoder(batch_of(rank)))).backward();
    first.step();
    second.step();
  }
}

// One backward runs through both: each knows the other's parameters.
TEST(OutsideLeaves, ThoseOfAnotherWrappedModelAreNone) {
  const auto printed = printed_by_two([](ProcessGroup& group) {
    Model encoder(two_layers(), group);
    Model head(Sequential(torch::nn::Linear(2, 1)), group);
    train_in_one_backward(encoder, head, group.rank());
  });
  EXPECT_THAT(printed, Not(HasSubstr(kOutside)));
}

// The head ignores its bias, which each rank trains apart: the encoder knows that too.
TEST(OutsideLeaves, ThoseThatAnotherWrappedModelIgnoresAreNone) {
  const auto printed = printed_by_two([](ProcessGroup& group) {
    Model encoder(two_layers(), group);
    Model head(Sequential(torch::nn::Linear(2, 1)), group, {.ignored_parameters = {"0.bias"}});
    {
      const torch::NoGradGuard no_grad;
      head.module()->parameters()[1].fill_(0.5);
    }
    train_in_one_backward(encoder, head, group.rank());
  });
  EXPECT_THAT(printed, Not(HasSubstr(kOutside)));
}

TEST(OutsideLeaves, IgnoredParametersAreNone) {
  const auto printed = printed_by_two([](ProcessGroup& group) {
    Model model(two_layers(), group, {.ignored_parameters = {"1.bias"}});
    SGD optimizer(model.module()->parameters(), 0.01);
    for (int step = 0; step < kOutsideSteps; ++step) {
      optimizer.zero_grad();
      square_loss(model(batch_of(group.rank()))).backward();
      optimizer.step();
    }
  });
  EXPECT_THAT(printed, Not(HasSubstr(kOutside)));
}

}  // namespace
}  // namespace muster::testing
