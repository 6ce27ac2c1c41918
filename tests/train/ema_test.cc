#include "muster/train/ema.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

torch::nn::Sequential averaged_net() {
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(6, 9));
  net->push_back(torch::nn::BatchNorm1d(9));
  net->push_back(torch::nn::Linear(9, 3));
  return net;
}

std::vector<double> floats_of(const Ema& ema) {
  std::vector<double> all;
  for (const auto& [name, average] : ema.averages()) {
    if (!average.is_floating_point())
      continue;
    const auto numbers = numbers_of(average);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  return all;
}

void compare_averages(const Oracle& oracle,
                      const std::string& name,
                      double decay,
                      const EmaOptions& options) {
  torch::manual_seed(5);
  auto net = averaged_net();
  const auto data = torch::randn({8, 6});
  auto ema = std::make_unique<Ema>(*net, decay, options);
  torch::optim::SGD optimizer(net->parameters(), 0.3);
  for (int step = 0; step < 25; ++step) {
    net->forward(data).square().sum().div(10).backward();
    optimizer.step();
    optimizer.zero_grad();
    ema->update();
    if (step != 10)
      continue;  // resumed by another process
    auto saved = ema->state();
    for (auto& [key, tensor] : saved.tensors)
      tensor = tensor.clone();
    ema = std::make_unique<Ema>(*net, decay, options);
    ema->load_state(saved);
  }
  expect_as_python(oracle, name, floats_of(*ema));
  const auto weights = net[0]->as<torch::nn::Linear>()->weight.clone();
  {
    const auto averages = ema->swap();
    net->eval();
    expect_as_python(oracle, name + "_output", numbers_of(net->forward(data)));
    net->train();
  }
  EXPECT_TRUE(net[0]->as<torch::nn::Linear>()->weight.equal(weights)) << "the weights are back";
  expect_as_python(oracle, name, floats_of(*ema));
}

TEST(Ema, AveragesArePythonsBits) {
  const auto oracle = ask_python("pytorch_ema.py");
  if (!oracle)
    GTEST_SKIP() << "no Python with PyTorch in .deps";
  compare_averages(*oracle, "ema_0.9", 0.9, {});
  compare_averages(*oracle, "ema_0.999_buffers", 0.999, {.buffers = EmaBuffers::average});
  compare_averages(*oracle, "ema_0.7_every_3", 0.7, {.every = 3});
  compare_averages(*oracle, "ema_0.99_warmup", 0.99, {.warmup = true});
}

TEST(Ema, ASharedWeightHasOneAverage) {
  torch::nn::Linear layer(torch::nn::LinearOptions(4, 4).bias(false));
  torch::nn::Sequential net;
  net->push_back(layer);
  net->push_back(layer);
  Ema ema(*net, 0.5);
  ema.update();
  const auto before = layer->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    layer->weight += 2;
  }
  ema.update();
  ASSERT_EQ(ema.averages().size(), 2U);
  EXPECT_TRUE(ema.averages()[0].second.allclose(before + 1));
  EXPECT_TRUE(ema.averages()[1].second.is_same(ema.averages()[0].second));
  {
    const auto averages = ema.swap();
    EXPECT_TRUE(layer->weight.allclose(before + 1));
  }
  EXPECT_TRUE(layer->weight.equal(before + 2));
}

TEST(Ema, AnExceptionBringsTheWeightsBack) {
  torch::nn::Linear net(2, 2);
  Ema ema(*net, 0.5);
  ema.update();
  const auto first = net->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    net->weight += 1;
  }
  const auto evaluate = [&] {
    const auto averages = ema.swap();
    EXPECT_TRUE(net->weight.equal(first));
    throw std::runtime_error("user's");
  };
  EXPECT_THROW(evaluate(), std::runtime_error);
  EXPECT_TRUE(net->weight.equal(first + 1));
}

// net->to() gives the parameters other memory.
TEST(Ema, FollowsAParameterThatGetsOtherMemory) {
  torch::nn::Linear net(2, 2);
  Ema ema(*net, 0.5);
  ema.update();
  const auto first = net->weight.detach().clone();
  net->weight.set_data(first + 2);
  ema.update();
  EXPECT_TRUE(ema.averages()[0].second.allclose(first + 1));
  net->to(torch::kDouble);
  EXPECT_EQ(message_of_error([&] { ema.update(); }),
            "ema: expected 'weight' as it was averaged, Float [2, 2], got Double [2, 2]; make the "
            "Ema after "
            "the model has its type, or load its state into a new one");
  EXPECT_TRUE(ema.averages()[0].second.allclose(first + 1));
  EXPECT_EQ(ema.updates(), 2);
  net->to(torch::kFloat);
  ema.update();
  EXPECT_EQ(ema.updates(), 3);
}

TEST(Ema, WrongUseIsNamed) {
  torch::nn::Linear net(2, 2), other(3, 2);
  EXPECT_EQ(message_of_error([&] { Ema(*net, 1.5); }),
            "ema: expected a decay between 0 and 1, got 1.5; 0.999 is a common choice");
  Ema ema(*net, 0.9), wide(*other, 0.9);
  EXPECT_THAT(message_of_error([&] { ema.load_state(wide.state()); }),
              HasSubstr("ema: expected 'weight' of shape [2, 2], got [2, 3]"));
  const auto averages = ema.swap();
  EXPECT_THAT(message_of_error([&] { ema.update(); }),
              HasSubstr("no update while the model has the averages"));
  EXPECT_THAT(message_of_error([&] { ema.state(); }),
              HasSubstr("no state while the model has the averages"));
  EXPECT_THAT(message_of_error([&] { const auto second = ema.swap(); }),
              HasSubstr("no second swap"));
}

}  // namespace
}  // namespace muster::testing
