// Ranks whose weights come to differ although their gradients are averaged, and ranks that train on
// the same samples: they are told of it, once; and others are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ATen/CPUGeneratorImpl.h>

#include <functional>
#include <string>

#include "muster/ddp/distributed_data_parallel.h"
#include "muster/ddp/hooks.h"
#include "muster/ddp/value_sample.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::nn::Sequential;
using torch::optim::SGD;

using Model = DistributedDataParallel<Sequential>;
constexpr int kSteps = 6;

struct Plan {
  std::function<double(int rank)> rate = [](int) {
    return 0.01;
  };
  std::function<void(Model&, int rank, int step)> before_step = [](Model&, int, int) {
  };
  DdpOptions options = {};
};

// What two ranks print that train by `plan`.
std::string printed_by(const Plan& plan) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    Model model(two_layers(), group, plan.options);
    SGD optimizer(model.parameters(), plan.rate(group.rank()));
    for (int step = 0; step < kSteps; ++step) {
      plan.before_step(model, group.rank(), step);
      optimizer.zero_grad();
      square_loss(model(batch_of(group.rank(), step % 2))).backward();
      optimizer.step();
    }
  });
  return ::testing::internal::GetCapturedStderr();
}

constexpr const char* kDrift = "expected equal weights on every rank, got others on rank 1 in '";

TEST(DriftingReplicas, ALearningRateOfEachRankIsSaidOnce) {
  const auto printed = printed_by({.rate = [](int rank) { return 0.01 / (1 + rank); }});
  EXPECT_EQ(times(printed, kDrift), 1U) << printed;
  EXPECT_THAT(printed, HasSubstr("at the end of backward 2 (rank 0); let every rank step alike"));
}

TEST(DriftingReplicas, AWriteOnOneRankIsSaidWithTheParameter) {
  const auto printed = printed_by({.before_step = [](Model& model, int rank, int step) {
    const torch::NoGradGuard no_grad;
    if (rank == 1 && step == 1)
      model.module()[1]->as<torch::nn::Linear>()->bias.add_(0.5);
  }});
  EXPECT_EQ(times(printed, kDrift), 1U) << printed;
}

TEST(DriftingReplicas, AnOptimizerThatOneRankStepsTwiceIsSaid) {
  const auto printed = printed_by({.before_step = [](Model& model, int rank, int step) {
    if (rank == 1 && step == 2)
      SGD(model.parameters(), 0.01).step();
  }});
  EXPECT_EQ(times(printed, kDrift), 1U) << printed;
}

// As after an evaluation by rank 0 alone that forgets train().
TEST(DriftingReplicas, AModelInAnotherModeOnOneRankIsSaidOnce) {
  const Plan plan{.before_step = [](Model& model, int rank, int step) {
    if (rank == 0 && step == 2)
      model.module()->eval();
  }};
  const auto printed = printed_by(plan);
  EXPECT_EQ(times(printed, "expected models in one mode on every rank"), 1U) << printed;
  EXPECT_THAT(
      printed,
      HasSubstr(
          "got evaluation on rank 0 and training on rank 1 at the end of backward 3 (rank 0)"));
  EXPECT_EQ(printed_by({.before_step = plan.before_step, .options = {.check_steps = false}}), "");
}

TEST(DriftingReplicas, EqualOnesAndThoseThatAreMeantToDifferAreNot) {
  const auto apart = [](int rank) {
    return 0.01 / (1 + rank);
  };
  const auto nothing = Not(AnyOf(HasSubstr("equal weights"), HasSubstr("one mode")));
  EXPECT_THAT(printed_by({}), nothing);
  EXPECT_THAT(printed_by({.rate = apart, .options = {.check_steps = false}}), nothing);
  EXPECT_THAT(printed_by({.rate = apart, .options = {.hook = fp16_compression()}}), nothing);
}

// Gradients that torch::autograd::grad returns are each rank's own.
void step_by_hand(Model& model, SGD& optimizer, const at::Tensor& loss) {
  const auto parameters = model.parameters();
  const auto gradients = torch::autograd::grad({loss}, parameters);
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = gradients[i];
  optimizer.step();
}

TEST(DriftingReplicas, AStepOnGradientsOfAutogradGradIsSaid) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    Model model(two_layers(), group);
    SGD optimizer(model.parameters(), 0.01);
    for (int step = 0; step < kSteps; ++step)
      step_by_hand(model, optimizer, square_loss(model(batch_of(group.rank(), step))));
  });
  const auto printed = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(times(printed, "has changed after torch::autograd::grad"), 2U) << printed;
  EXPECT_THAT(printed, HasSubstr("call backward(), which averages the gradients"));
}

// The gradient of an input, and a penalty on it, end in a backward that is averaged.
TEST(DriftingReplicas, AGradientPenaltyIsNot) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    Model model(two_layers(), group);
    SGD optimizer(model.parameters(), 0.001);
    for (int step = 0; step < kSteps; ++step) {
      const auto input = batch_of(group.rank()).requires_grad_();
      const auto output = square_loss(model(input));
      const auto slope = torch::autograd::grad({output}, {input}, {}, true, true)[0];
      optimizer.zero_grad();
      (output + slope.square().sum()).backward();
      optimizer.step();
    }
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("warn")));
}

constexpr const char* kSameSamples = "expected each rank to train on samples of its own";

// What ranks print that train on the samples that `source` gives their rank.
std::string printed_by_samples(int ranks, int steps, const std::function<int(int rank)>& source) {
  ::testing::internal::CaptureStderr();
  run_ranks(ranks, [&](ProcessGroup& group) {
    Model model(two_layers(), group);
    SGD optimizer(model.parameters(), 0.01);
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      square_loss(model(batch_of(source(group.rank()), step % 2))).backward();
      optimizer.step();
    }
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST(SameSamples, AreSaidOnceAfterThreeSteps) {
  const auto printed = printed_by_samples(2, kSteps, [](int) { return 0; });
  EXPECT_EQ(times(printed, kSameSamples), 1U) << printed;
  EXPECT_THAT(printed,
              HasSubstr("got the same gradients on ranks 0 and 1 in the first 3 backwards"));
  const auto of_a_host = printed_by_samples(3, kSteps, [](int rank) { return rank == 0 ? 0 : 1; });
  EXPECT_THAT(of_a_host, HasSubstr("got the same gradients on ranks 1 and 2"));
}

TEST(SameSamples, OfAFewStepsOrOfNoneAreNot) {
  EXPECT_THAT(printed_by_samples(2, 2, [](int) { return 0; }), Not(HasSubstr(kSameSamples)));
  EXPECT_THAT(printed_by_samples(3, kSteps, [](int rank) { return rank; }),
              Not(HasSubstr(kSameSamples)));
}

// Most of an embedding's gradient is zero, and so are the values of it that a sample takes.
TEST(SameSamples, OfAModelThatBeginsWithAnEmbeddingAreSaid) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    torch::manual_seed(1);
    Model model(Sequential(torch::nn::Embedding(100'000, 4), torch::nn::Linear(4, 2)), group);
    for (int64_t step = 0; step < 3; ++step) {
      drop_gradients(*model.module());
      square_loss(model(torch::arange(8) + step)).backward();
    }
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(kSameSamples));
}

// The bias of the last layer has the gradient -1 whatever the samples are, as long as an absolute
// error has one sign.
TEST(SameSamples, OfALossThatGivesABiasTheSameGradientAreNot) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    Model model(two_layers(), group);
    SGD optimizer(model.parameters(), 0.001);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      (1000 - model(batch_of(group.rank(), step))).abs().mean().backward();
      optimizer.step();
    }
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr(kSameSamples)));
}

// LibTorch's own loader gives every rank all of the data, unless its sampler knows the rank.
TEST(SameSamples, OfLibTorchsLoaderAreSaid) {
  const auto train = [](ProcessGroup& group, auto sampler) {
    Model model(two_layers(), group);
    auto data = torch::data::datasets::TensorDataset(
                    torch::randn({24, 3}, at::make_generator<at::CPUGeneratorImpl>(7)))
                    .map(torch::data::transforms::Stack<torch::data::TensorExample>());
    auto loader = torch::data::make_data_loader(std::move(data), std::move(sampler), 4);
    for (auto& batch : *loader) {
      drop_gradients(*model.module());
      square_loss(model(batch.data)).backward();
    }
  };
  ::testing::internal::CaptureStderr();
  run_ranks(
      2, [&](ProcessGroup& group) { train(group, torch::data::samplers::SequentialSampler(24)); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(kSameSamples));
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    train(group,
          torch::data::samplers::DistributedSequentialSampler(
              24, 2, static_cast<size_t>(group.rank())));
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr(kSameSamples)));
}

TEST(ValueSample, DiffersWhereValuesDoByMoreThanRoundings) {
  torch::manual_seed(1);
  const auto weight = torch::randn({64, 48});
  for (const auto& values :
       {weight,
        weight.to(at::kDouble),
        weight.to(at::kBFloat16),
        weight.to(at::kComplexFloat),
        weight.t(),
        weight.view({4, 3, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast)}) {
    const auto sample = sample_of(values);
    EXPECT_TRUE(sample.is_taken());
    EXPECT_TRUE(sample.has_bits_of(sample_of(values.clone())));
    EXPECT_FALSE(sample.has_bits_of(sample_of(values * 1.1)));
    EXPECT_FALSE(sample.differs_from(sample_of(values.clone())));
    EXPECT_TRUE(sample.differs_from(sample_of(values * 1.1)) ||
                values.scalar_type() == at::kBFloat16);
    EXPECT_TRUE(sample.differs_from(sample_of(values * 2)));
    EXPECT_TRUE(sample.differs_from(sample_of(values * NAN)));
  }
  EXPECT_FALSE(sample_of(weight).differs_from(sample_of(weight * (1 + 1e-7))));
  const auto zeros = torch::zeros({4});
  EXPECT_FALSE(sample_of(zeros).has_bits_of(sample_of(zeros)));
}

TEST(ValueSample, IsNotTakenOfWhatHasNoValuesInOneBlock) {
  const auto weight = torch::ones({4, 4});
  for (const auto& values :
       {torch::empty({0}), weight.slice(1, 0, 2), torch::ones({1}).expand({4})}) {
    EXPECT_FALSE(sample_of(values).is_taken());
    EXPECT_FALSE(sample_of(values).has_bits_of(sample_of(values)));
    EXPECT_FALSE(sample_of(values).differs_from(sample_of(weight)));
  }
}

}  // namespace
}  // namespace muster::testing
