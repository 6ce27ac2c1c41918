#include "muster/train/precision.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <ATen/autocast_mode.h>

#include <set>

#include "muster/base/error.h"
#include "muster/train/clip.h"
#include "tests/support/ranks.h"
#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

struct SmallImageNetImpl : torch::nn::Module {
  SmallImageNetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("fc", fc);
  }
  at::Tensor forward(const at::Tensor& x) { return fc(torch::relu(norm(conv(x))).flatten(1)); }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 6, 3)};
  torch::nn::BatchNorm2d norm{6};
  torch::nn::Linear fc{6 * 36, 10};
};
TORCH_MODULE(SmallImageNet);

std::vector<double> losses_in(const std::string& type) {
  torch::manual_seed(3);
  const auto images = torch::randn({64, 1, 8, 8});
  const auto labels = torch::randint(10, {64});
  SmallImageNet net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Precision precision(at::kCPU, {.type = type, .init_scale = 262144, .growth_interval = 4});
  std::vector<double> losses;
  for (int step = 0; step < 12; ++step) {
    const auto loss = precision.run([&] { return torch::cross_entropy_loss(net(images), labels); });
    precision.scale(loss).backward();
    precision.unscale(optimizer);
    clip_grad_norm(net->parameters(), 0.5);
    precision.step(optimizer);
    precision.update();
    optimizer.zero_grad();
    losses.push_back(loss.item<float>());
  }
  return losses;
}

TEST(Precision, LossesAndScalesArePythons) {
  const auto oracle = ask_python("pytorch_precision.py");
  if (!oracle)
    GTEST_SKIP() << "no Python with PyTorch in .deps";
  auto first = torch::full({4}, 1.0, torch::requires_grad());
  auto second = torch::full({4}, 2.0, torch::requires_grad());
  torch::optim::SGD one({first}, 0.1);
  torch::optim::SGD other({second}, 0.1);
  Precision precision(at::kCPU, {.type = "fp16", .growth_interval = 3});
  std::vector<double> scales, trackers;
  const std::set<int> bad_first{0, 1, 9, 20, 21, 22}, bad_second{5, 21};
  for (int step = 0; step < 40; ++step) {
    precision.scale((first * second).sum()).backward();
    if (bad_first.contains(step))
      first.mutable_grad()[1] = INFINITY;
    if (bad_second.contains(step))
      second.mutable_grad()[2] = NAN;
    EXPECT_EQ(precision.step(one), !bad_first.contains(step)) << step;
    EXPECT_EQ(precision.step(other), !bad_second.contains(step)) << step;
    precision.update();
    one.zero_grad();
    other.zero_grad();
    scales.push_back(precision.state().numbers.at("scale"));
    trackers.push_back(precision.state().numbers.at("growth_tracker"));
  }
  expect_as_python(*oracle, "scales", scales);
  expect_as_python(*oracle, "growth_trackers", trackers);
  expect_as_python(*oracle, "first", numbers_of(first));
  expect_as_python(*oracle, "second", numbers_of(second));
  for (const std::string type : {"fp32", "bf16", "fp16"})
    expect_as_python(*oracle, "losses_" + type, losses_in(type));
}

TEST(Precision, GradientsAreDividedOnce) {
  auto weight = torch::ones({3}, torch::requires_grad());
  auto bias = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD optimizer({weight, bias}, 1.0);
  Precision precision(at::kCPU, {.type = "fp16", .init_scale = 8});
  precision.scale((2 * weight).sum() + bias.sum()).backward();
  precision.unscale({weight});
  precision.unscale(optimizer);
  precision.unscale(optimizer);
  EXPECT_TRUE(weight.grad().equal(torch::full({3}, 2.0)));
  EXPECT_TRUE(bias.grad().equal(torch::ones({1})));
  EXPECT_TRUE(precision.step(optimizer));
  EXPECT_TRUE(weight.equal(torch::full({3}, -1.0)));
}

TEST(Precision, SparseGradientsAreDividedToo) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  torch::optim::SGD optimizer(table->parameters(), 1.0);
  Precision precision(at::kCPU, {.type = "fp16", .init_scale = 16});
  precision.scale(table(torch::tensor({1, 3, 1})).sum()).backward();
  precision.unscale(optimizer);
  const auto expected =
      torch::tensor({{0., 0.}, {2., 2.}, {0., 0.}, {1., 1.}, {0., 0.}}).to(torch::kFloat);
  EXPECT_TRUE(table->weight.grad().to_dense().equal(expected));
  precision.update();
  precision.scale(table(torch::tensor({1, 3, 1})).sum()).backward();
  table->weight.mutable_grad()._values()[0][0] = INFINITY;
  EXPECT_FALSE(precision.step(optimizer));
}

TEST(Precision, AutocastEndsWithItsScope) {
  const auto state = [] {
    return std::make_pair(at::autocast::is_autocast_enabled(at::kCPU),
                          at::autocast::get_autocast_dtype(at::kCPU));
  };
  const auto before = state();
  const Precision half(at::kCPU, "fp16"), brain(at::kCPU, "bf16"), full(at::kCPU, "fp32");
  const auto x = torch::ones({2, 2});
  EXPECT_THROW(half.run([&]() -> at::Tensor { throw std::runtime_error("user's"); }),
               std::runtime_error);
  EXPECT_EQ(state(), before);
  {
    const auto outer = half.autocast();
    EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kHalf);
    EXPECT_EQ(brain.run([&] { return torch::mm(x, x); }).scalar_type(), torch::kBFloat16);
    EXPECT_EQ(full.run([&] { return torch::mm(x, x); }).scalar_type(), torch::kFloat);
    EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kHalf);
  }
  EXPECT_EQ(state(), before);
}

TEST(Precision, WeightsChangedBetweenScopesAreCastAnew) {
  const Precision precision(at::kCPU, "bf16");
  auto weight = torch::ones({2, 2}, torch::requires_grad());
  const auto product = [&] {
    return precision.run([&] { return torch::mm(torch::ones({2, 2}), weight); });
  };
  EXPECT_EQ(product().sum().item<float>(), 8);
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(2);
  }
  EXPECT_EQ(product().sum().item<float>(), 16);
}

TEST(Precision, AResumedRunHasTheSameScales) {
  auto weight = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 0.0);
  const PrecisionOptions options{.type = "fp16", .growth_interval = 3};
  Precision precision(at::kCPU, options), resumed(at::kCPU, options);
  const auto train_one = [&](Precision& by) {
    by.scale(weight.sum()).backward();
    by.step(optimizer);
    by.update();
    optimizer.zero_grad();
    return by.scale_value();
  };
  for (int step = 0; step < 5; ++step)
    train_one(precision);
  resumed.load_state(precision.state());
  for (int step = 0; step < 5; ++step)
    EXPECT_EQ(train_one(precision), train_one(resumed)) << step;
  EXPECT_THAT(message_of_error([&] { resumed.load_state({}); }),
              HasSubstr("precision: expected a saved state with the number 'scale'"));
}

// A loop of one's own whose batches are bad for long, as with data that are NaN.
TEST(Precision, TheScaleShrinksToOneAndThenBadGradientsAreAnError) {
  for (const bool by_step : {true, false}) {
    auto weight = torch::ones({3}, torch::requires_grad());
    torch::optim::SGD optimizer({weight}, 0.5);
    Precision precision(at::kCPU, "fp16");
    int skipped = 0, refused = 0;
    for (int step = 0; step < 200; ++step) {
      precision.scale(weight.sum() * INFINITY).backward();
      precision.unscale(optimizer);
      EXPECT_FALSE(by_step ? precision.step(optimizer) : !precision.found_nonfinite({weight}));
      try {
        precision.update();
        ++skipped;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(),
                    HasSubstr("with a loss scale of 1, which is the smallest, got NaN"));
        ++refused;
      }
      optimizer.zero_grad();
    }
    EXPECT_EQ(skipped, 16) << "65536 is halved 16 times";
    EXPECT_EQ(refused, 200 - 16);
    precision.scale(weight.sum()).backward();
    EXPECT_TRUE(precision.step(optimizer));
    EXPECT_TRUE(weight.equal(torch::full({3}, 0.5)));
  }
}

TEST(Precision, AScaleThatBeganBelowOneDoesNotShrink) {
  auto weight = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 0.5);
  Precision precision(at::kCPU, {.type = "fp16", .init_scale = 0.1});
  precision.scale(weight.sum() * INFINITY).backward();
  EXPECT_FALSE(precision.step(optimizer));
  EXPECT_THROW(precision.update(), Error);
  EXPECT_FLOAT_EQ(static_cast<float>(precision.scale_value()), 0.1F);
  precision.load_state({.numbers = {{"scale", 0}, {"growth_tracker", 3}}});
  EXPECT_FLOAT_EQ(static_cast<float>(precision.scale_value()), 0.1F)
      << "of a run that had no floor";
}

TEST(Precision, AllRanksLeaveOutAStepOrNone) {
  run_ranks(3, [](ProcessGroup& group) {
    auto weight = torch::ones({3}, torch::requires_grad());
    torch::optim::SGD optimizer({weight}, 1.0);
    Precision precision(at::kCPU, {.type = "fp16", .init_scale = 4, .group = group});
    for (int step = 0; step < 4; ++step) {
      precision.scale(weight.sum()).backward();
      if (step == 1 && group.rank() == 2)
        weight.mutable_grad()[0] = INFINITY;
      EXPECT_EQ(precision.step(optimizer), step != 1);
      precision.update();
      optimizer.zero_grad();
    }
    EXPECT_EQ(precision.scale_value(), 2);
  });
}

TEST(Precision, AForgottenUpdateIsAnError) {
  auto weight = torch::ones({3}, torch::requires_grad());
  auto other = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 0.5), of_other({other}, 0.5);
  Precision precision(at::kCPU, "fp16");
  for (int step = 0; step < 2; ++step) {  // two networks, as a GAN has, and one update
    precision.scale((weight * other).sum()).backward();
    EXPECT_TRUE(precision.step(optimizer));
    EXPECT_TRUE(precision.step(of_other));
    precision.update();
  }
  precision.scale(weight.sum()).backward();
  EXPECT_TRUE(precision.step(optimizer));
  precision.scale(weight.sum()).backward();
  const auto before = weight.detach().clone();
  EXPECT_THAT(message_of_error([&] { precision.step(optimizer); }),
              HasSubstr("expected one step of an optimizer until update, got a second one"));
  EXPECT_TRUE(weight.equal(before));
  Precision full(at::kCPU, "fp32");
  EXPECT_TRUE(full.step(optimizer));
  EXPECT_TRUE(full.step(optimizer)) << "a type without a scale needs no update";
}

TEST(Precision, AForgottenScaleIsAnError) {
  auto weight = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 0.5);
  Precision precision(at::kCPU, "fp16");
  const auto train_one = [&](const at::Tensor& loss, bool unscales) {
    optimizer.zero_grad();
    loss.backward();
    if (unscales)
      precision.unscale(optimizer);
    precision.step(optimizer);
    precision.update();
  };
  const std::string error = "expected gradients of a scaled loss, got a backward without";
  for (const bool unscales : {false, true}) {
    for (const auto& loss : {weight.sum(), weight.sum()})
      train_one(precision.scale(loss), unscales);
    EXPECT_THAT(message_of_error([&] { train_one(weight.sum(), unscales); }), HasSubstr(error));
    precision.load_state(precision.state());
    EXPECT_THAT(message_of_error([&] { train_one(weight.sum(), unscales); }), HasSubstr(error));
    precision.load_state(precision.state());
    train_one(weight.sum() * precision.scale_value(), unscales);
    const Precision copy = precision;  // as a function of one's own may hold it
    train_one(copy.scale(weight.sum()), unscales);
  }
  optimizer.zero_grad();
  precision.step(optimizer);  // nothing was trained
}

TEST(Precision, WrongUseIsNamed) {
  EXPECT_EQ(message_of_error([] { Precision(at::kCPU, "half"); }),
            "precision: expected fp32, bf16 or fp16, got 'half'; pass one of these");
  EXPECT_EQ(message_of_error([] { Precision(at::kCPU, {.type = "fp16", .growth_factor = 1}); }),
            "precision: expected a growth above 1, got growth_factor 1; leave it at its default");
  EXPECT_THAT(message_of_error([] { Precision(at::kCPU, "fp16").update(); }),
              HasSubstr("expected unscale or step before update"));
  EXPECT_THAT(message_of_error([] { Precision(at::kMeta, "bf16"); }), HasSubstr("got meta ("))
      << "no kernels";
  auto half = torch::ones({2}, torch::kHalf).requires_grad_(true);
  half.mutable_grad() = torch::ones({2}, torch::kHalf);
  Precision precision(at::kCPU, "fp16");
  EXPECT_THAT(message_of_error([&] { precision.unscale({half}); }),
              HasSubstr("got a gradient of fp16"));
}

}  // namespace
}  // namespace muster::testing
