#include "muster/train/ema.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <memory>
#include <string>

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

// 1 - 0.999 of the way from 1 to 2 is less than half a bit of bf16 at 1.
TEST(Ema, AveragesOfHalfWeightsMove) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    torch::nn::Linear net(2, 2), exact(2, 2);
    net->to(type);
    torch::NoGradGuard no_grad;
    for (auto& layer : {net, exact})
      for (auto& parameter : layer->parameters())
        parameter.fill_(1);
    Ema ema(*net, 0.999), expected(*exact, 0.999);
    ema.update();
    expected.update();
    for (auto& layer : {net, exact})
      for (auto& parameter : layer->parameters())
        parameter.fill_(2);
    for (int step = 0; step < 100; ++step) {
      ema.update();
      expected.update();
    }
    const torch::Tensor average = expected.averages()[0].second;
    EXPECT_TRUE(ema.averages()[0].second.equal(average)) << type;
    {
      const auto averages = ema.swap();
      EXPECT_EQ(net->weight.scalar_type(), type);
      EXPECT_TRUE(net->weight.equal(average.to(type)));
    }
    EXPECT_TRUE(net->weight.equal(torch::full({2, 2}, 2).to(type)));
    EXPECT_TRUE(ema.averages()[0].second.equal(average)) << "a swap rounds nothing";
    {
      const auto averages = ema.swap();
      net->bias.fill_(7);  // as one who adapts the averages
    }
    EXPECT_EQ(ema.averages()[1].second[0].item<float>(), 7);
    EXPECT_EQ(net->bias[0].item<float>(), 2);
    SavedState of_before = ema.state();  // by a program that kept averages in the weights' type
    for (auto& [name, tensor] : of_before.tensors)
      tensor = tensor.to(type);
    Ema resumed(*net, 0.999);
    resumed.load_state(of_before);
    EXPECT_TRUE(resumed.averages()[0].second.equal(average.to(type).to(torch::kFloat)));
  }
}

TEST(Ema, WeightsInOneMemoryComeBack) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
    net->to(type);
    const auto parameters = net->parameters();
    parameters[2].set_data(parameters[0].detach());
    Ema ema(*net, 0.5);
    ema.update();
    const auto first = parameters[0].detach().clone();
    torch::NoGradGuard no_grad;
    parameters[0].add_(2);
    const auto second = parameters[0].detach().clone();
    ema.update();
    const auto average = ema.averages()[0].second.clone();
    {
      const auto averages = ema.swap();
      EXPECT_TRUE(parameters[0].allclose(first + 1, 0.01, 0.01));
      EXPECT_TRUE(parameters[2].equal(parameters[0]));
    }
    EXPECT_TRUE(parameters[0].equal(second));
    EXPECT_TRUE(ema.averages()[0].second.equal(average));
    EXPECT_TRUE(ema.averages()[2].second.equal(average));
  }
}

TEST(Ema, BeforeTheFirstUpdateTheAveragesAreTheWeights) {
  torch::nn::Linear net(2, 2);
  Ema ema(*net, 0.5);
  const torch::NoGradGuard no_grad;
  net->weight.fill_(3);  // as load_weights does
  {
    const auto averages = ema.swap();
    EXPECT_TRUE(net->weight.equal(torch::full({2, 2}, 3.0)));
  }
  EXPECT_TRUE(net->weight.equal(torch::full({2, 2}, 3.0)));
}

TEST(Ema, AReplacedModuleIsNamed) {
  struct Net : torch::nn::Module {
    Net() {
      body = register_module("body", torch::nn::Linear(2, 2));
      head = register_module("head", torch::nn::Linear(2, 2));
    }
    torch::nn::Linear body = nullptr, head = nullptr;
  };
  const auto net = std::make_shared<Net>();
  Ema ema(*net, 0.5);
  ema.update();
  net->register_module("adapter", torch::nn::Linear(2, 2));  // what is added is not averaged
  {
    const auto averages = ema.swap();
  }
  net->replace_module("head", torch::nn::Linear(2, 3));
  const std::string error =
      "ema: expected 'head.weight' of the model to stay the tensor that it was, got another one; "
      "replace modules and parameters before the Ema and its pieces are made";
  EXPECT_EQ(message_of_error([&] { ema.update(); }), error);
  EXPECT_EQ(message_of_error([&] { const auto averages = ema.swap(); }), error);
  EXPECT_EQ(message_of_error([&] { ema.state(); }), error);
  EXPECT_EQ(message_of_error([&] { ema.pieces(); }), error);
}

// Averages of pieces are of the model that the pieces were made of.
TEST(Ema, PiecesOfAModelWhoseModuleWasReplacedAreRefused) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  const TensorPieces pieces = whole_pieces(*net);
  Ema ema(pieces, 0.5);
  ema.update();
  net->replace_module("1", torch::nn::Tanh());
  EXPECT_EQ(message_of_error([&] { ema.update(); }),
            "ema: expected '1.weight' of the model to stay the tensor that it was, got none; "
            "replace modules and parameters before the Ema and its pieces are made");
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
