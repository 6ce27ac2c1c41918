#include "muster/optim/optim.h"

#include "muster/optim/groups.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using Parameters = std::vector<at::Tensor>;
using AdamWGroups = std::vector<torch::optim::OptimizerParamGroup>;

const std::vector<std::vector<int64_t>>& shapes() {
  static const std::vector<std::vector<int64_t>> all{{3}, {17, 5}, {}, {64, 33}, {2, 3, 4}};
  return all;
}

Parameters new_parameters() {
  torch::manual_seed(3);
  Parameters made;
  for (const auto& shape : shapes())
    made.push_back(torch::randn(shape).requires_grad_(true));
  return made;
}

// The same gradients as pytorch_optim.py's: for Adam not every step has each.
template <class Options>
void set_gradients(const Parameters& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = torch::randn(shapes()[i]);
  if (!std::is_same_v<Options, torch::optim::SGDOptions> && step % 3 == 0)
    parameters[2].mutable_grad() = at::Tensor();
}

template <class Options>
void halve_rate(torch::optim::Optimizer& optimizer) {
  auto& options = static_cast<Options&>(optimizer.param_groups()[0].options());
  options.lr(options.lr() * 0.5);
}

template <class Options>
void take_steps(torch::optim::Optimizer& optimizer,
                const Parameters& parameters,
                int from,
                int to) {
  for (int step = from; step < to; ++step) {
    set_gradients<Options>(parameters, step);
    if (step == 5)
      halve_rate<Options>(optimizer);
    optimizer.step();
  }
}

std::vector<double> all_numbers(const Parameters& parameters) {
  std::vector<double> all;
  for (const auto& parameter : parameters)
    for (const double number : numbers_of(parameter))
      all.push_back(number);
  return all;
}

// Trains by torch::optim and by muster::optim. What they make of it is the same but for rounding.
template <class Theirs, class Ours, class Options>
void expect_near_torch(const Options& options) {
  auto for_theirs = new_parameters();
  Theirs theirs(for_theirs, options);
  take_steps<Options>(theirs, for_theirs, 0, 10);
  auto for_ours = new_parameters();
  Ours ours(for_ours, options);
  take_steps<Options>(ours, for_ours, 0, 10);
  for (size_t i = 0; i < for_ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(for_ours[i], for_theirs[i], 1e-5, 1e-6)) << "parameter " << i;
}

torch::optim::AdamWOptions adamw() {
  return torch::optim::AdamWOptions(1e-2).weight_decay(0.1);
}
torch::optim::AdamWOptions amsgrad() {
  return torch::optim::AdamWOptions(1e-2).betas(std::make_tuple(0.8, 0.99)).amsgrad(true);
}
torch::optim::AdamOptions adam() {
  return torch::optim::AdamOptions(1e-2).weight_decay(0.1);
}
torch::optim::SGDOptions sgd() {
  return torch::optim::SGDOptions(0.1);
}

TEST(Optim, AllButRoundingIsAsInTorchOptim) {
  expect_near_torch<torch::optim::AdamW, optim::AdamW>(adamw());
  expect_near_torch<torch::optim::AdamW, optim::AdamW>(amsgrad());
  expect_near_torch<torch::optim::Adam, optim::Adam>(adam());
  expect_near_torch<torch::optim::SGD, optim::SGD>(sgd());
  expect_near_torch<torch::optim::SGD, optim::SGD>(sgd().momentum(0.9).weight_decay(1e-2));
  expect_near_torch<torch::optim::SGD, optim::SGD>(sgd().momentum(0.9).nesterov(true));
  expect_near_torch<torch::optim::SGD, optim::SGD>(sgd().momentum(0.9).dampening(0.5));
}

template <class Optimizer, class Options>
void expect_as_fused_python(const Oracle& oracle, const std::string& name, const Options& options) {
  auto parameters = new_parameters();
  Optimizer optimizer(parameters, options);
  take_steps<Options>(optimizer, parameters, 0, 10);
  expect_as_python(oracle, name, all_numbers(parameters));
}

TEST(Optim, HasTheBitsOfPythonsFusedOptimizers) {
  const auto oracle = ask_python("pytorch_optim.py");
  if (!oracle)
    GTEST_SKIP() << "no Python with PyTorch";
  expect_as_fused_python<optim::AdamW>(*oracle, "adamw", adamw());
  expect_as_fused_python<optim::AdamW>(*oracle, "adamw_amsgrad", amsgrad());
  expect_as_fused_python<optim::Adam>(*oracle, "adam", adam());
  expect_as_fused_python<optim::SGD>(*oracle, "sgd", sgd());
  expect_as_fused_python<optim::SGD>(
      *oracle, "sgd_momentum", sgd().momentum(0.9).weight_decay(1e-2));
  expect_as_fused_python<optim::SGD>(*oracle, "sgd_nesterov", sgd().momentum(0.9).nesterov(true));
  expect_as_fused_python<optim::SGD>(*oracle, "sgd_dampening", sgd().momentum(0.9).dampening(0.5));
}

// Saves what one class has after four steps, and loads it into another, which goes on.
template <class From, class To, class Options>
std::vector<double> after_a_change(const Options& options) {
  auto parameters = new_parameters();
  std::stringstream file;
  {
    From before(parameters, options);
    take_steps<Options>(before, parameters, 0, 4);
    torch::save(before, file);
  }
  To after(parameters, options);
  torch::load(after, file);
  take_steps<Options>(after, parameters, 4, 10);
  return all_numbers(parameters);
}

TEST(Optim, StateFitsBothWays) {
  using Theirs = torch::optim::AdamW;
  using Ours = optim::AdamW;
  const auto ours = after_a_change<Ours, Ours>(adamw());
  const auto from_theirs = after_a_change<Theirs, Ours>(adamw());
  const auto to_theirs = after_a_change<Ours, Theirs>(adamw());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(from_theirs[i], ours[i], 1e-5);
    EXPECT_NEAR(to_theirs[i], ours[i], 1e-5);
  }
  auto parameters = new_parameters();
  Ours unbroken(parameters, adamw());
  take_steps<torch::optim::AdamWOptions>(unbroken, parameters, 0, 10);
  EXPECT_EQ(all_numbers(parameters), ours);
}

TEST(Optim, TensorsMayLieOtherwiseInMemory) {
  torch::manual_seed(3);
  auto images = torch::randn({4, 3, 5, 5});
  const auto gradient = torch::randn({4, 3, 5, 5});
  const auto step = [&](const at::Tensor& with) {
    auto parameter = images.clone().requires_grad_(true);
    optim::AdamW optimizer({parameter}, adamw());
    parameter.mutable_grad() = with;
    optimizer.step();
    return parameter.detach();
  };
  const auto other = gradient.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(torch::equal(step(gradient), step(other)));
}

TEST(Optim, ComplexParametersHaveTorchsOwnStep) {
  torch::manual_seed(3);
  const auto values = torch::randn({4}, at::kComplexFloat), gradient = torch::randn_like(values);
  const auto step = [&](auto made) {
    auto parameter = values.clone().requires_grad_(true);
    auto optimizer = made(parameter);
    parameter.mutable_grad() = gradient;
    optimizer.step();
    return parameter.detach();
  };
  const auto theirs =
      step([](const at::Tensor& tensor) { return torch::optim::SGD({tensor}, sgd()); });
  const auto ours = step([](const at::Tensor& tensor) { return optim::SGD({tensor}, sgd()); });
  EXPECT_TRUE(torch::equal(ours, theirs));
}

TEST(Optim, ReturnsTheClosuresLoss) {
  auto parameter = torch::ones({2}).requires_grad_(true);
  optim::SGD optimizer({parameter}, sgd());
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    auto loss = parameter.square().sum();
    loss.backward();
    return loss;
  });
  EXPECT_EQ(loss.item<float>(), 2);
  EXPECT_NEAR(parameter[0].item<float>(), 0.8, 1e-6);
}

TEST(Optim, GroupsByDecayAndByLayer) {
  torch::nn::Sequential net(torch::nn::Linear(4, 3),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})),
                            torch::nn::Linear(3, 2));
  AdamWGroups by_decay = optim::groups_by_decay(net->parameters(), adamw());
  ASSERT_EQ(by_decay.size(), 2U);
  EXPECT_EQ(by_decay[0].params().size(), 2U);
  EXPECT_EQ(by_decay[1].params().size(), 4U);
  const auto options_of = [](const torch::optim::OptimizerParamGroup& group) {
    return static_cast<const torch::optim::AdamWOptions&>(group.options());
  };
  EXPECT_EQ(options_of(by_decay[0]).weight_decay(), 0.1);
  EXPECT_EQ(options_of(by_decay[1]).weight_decay(), 0);
  std::vector<Parameters> layers;
  for (const auto& layer : *net)
    layers.push_back(layer.ptr()->parameters());
  const AdamWGroups by_layer = optim::groups_by_layer(layers, adamw(), 0.5);
  ASSERT_EQ(by_layer.size(), 3U);
  EXPECT_DOUBLE_EQ(options_of(by_layer[0]).lr(), 0.25e-2);
  EXPECT_DOUBLE_EQ(options_of(by_layer[2]).lr(), 1e-2);
  for (const double factor : {-1.0, 0.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THAT(message_of_error([&] { optim::groups_by_layer(layers, adamw(), factor); }),
                HasSubstr("expected a finite factor above 0, got "));
  EXPECT_THAT(message_of_error([&] { optim::groups_by_decay(Parameters(), adamw()); }),
              HasSubstr("groups_by_decay: expected parameters, got none"));
}

// LibTorch's net->parameters() has a weight that two layers share twice.
template <class Theirs, class Ours, class Options>
void expect_steps_once(const Options& options) {
  auto for_theirs = new_parameters();
  Theirs theirs(for_theirs, options);
  take_steps<Options>(theirs, for_theirs, 0, 4);
  auto for_ours = new_parameters();
  Parameters twice = for_ours;
  twice.insert(twice.end(), {for_ours[1], for_ours[0]});
  Ours ours(twice, options);
  EXPECT_EQ(ours.param_groups()[0].params().size(), for_ours.size());
  take_steps<Options>(ours, for_ours, 0, 4);
  for (size_t i = 0; i < for_ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(for_ours[i], for_theirs[i], 1e-5, 1e-6)) << "parameter " << i;
}

TEST(Optim, StepsOnceOnAWeightThatIsListedTwice) {
  expect_steps_once<torch::optim::AdamW, optim::AdamW>(adamw());
  expect_steps_once<torch::optim::Adam, optim::Adam>(adam());
  expect_steps_once<torch::optim::SGD, optim::SGD>(sgd().momentum(0.9));
  const auto parameters = new_parameters();
  const AdamWGroups in_two{{parameters}, {Parameters{parameters[1]}}};
  const auto refused = HasSubstr(
      "optimizer: expected each parameter in one group, got one of shape [17, 5] "
      "in two; take it out of one");
  EXPECT_THAT(message_of_error([&] { optim::AdamW(in_two, adamw()); }), refused);
  optim::AdamW later(Parameters{parameters[1]}, adamw());
  EXPECT_THAT(message_of_error(
                  [&] { later.add_param_group(torch::optim::OptimizerParamGroup(parameters)); }),
              refused);
  EXPECT_EQ(later.param_groups().size(), 1U);
  later.add_param_group(torch::optim::OptimizerParamGroup({parameters[0], parameters[0]}));
  EXPECT_EQ(later.param_groups()[1].params().size(), 1U);
  EXPECT_TRUE(later.param_groups()[1].has_options());
}

TEST(Optim, GroupsHaveAWeightThatIsListedTwiceOnce) {
  const auto all = new_parameters();
  const Parameters twice{all[0], all[1], all[1], all[0]};
  for (const auto& group : optim::groups_by_decay(twice, adamw()))
    EXPECT_EQ(group.params().size(), 1U);
  EXPECT_EQ(optim::groups_by_layer({twice}, adamw(), 0.5)[0].params().size(), 2U);
  EXPECT_THAT(message_of_error([&] { optim::groups_by_layer({{all[0]}, twice}, adamw(), 0.5); }),
              HasSubstr("groups_by_layer: expected each parameter in one group"));
}

TEST(Optim, AmsgradMayBeSetLater) {
  auto parameters = new_parameters();
  optim::AdamW optimizer(parameters, adamw());
  take_steps<torch::optim::AdamWOptions>(optimizer, parameters, 0, 2);
  static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).amsgrad(true);
  take_steps<torch::optim::AdamWOptions>(optimizer, parameters, 2, 4);
  for (const at::Tensor& parameter : parameters)
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
}

// What the device leaves out changes nothing, and the counts of steps go back when the host knows.
TEST(Optim, AStepThatIsLeftOutChangesNothing) {
  auto left_out = new_parameters(), plain = new_parameters();
  optim::AdamW with(left_out, adamw()), without(plain, adamw());
  const auto both = [&](int step) {
    set_gradients<torch::optim::AdamWOptions>(plain, step);
    for (size_t i = 0; i < plain.size(); ++i)
      left_out[i].mutable_grad() = plain[i].grad();
  };
  both(1);
  with.step_unless(torch::zeros({}));
  without.step();
  with.step_unless(torch::ones({}));
  both(2);
  with.step_unless(torch::zeros({}));
  without.step();
  EXPECT_EQ(all_numbers(left_out), all_numbers(plain));
  with.take_back(1);
  both(4);
  with.step();
  without.step();
  EXPECT_EQ(all_numbers(left_out), all_numbers(plain));
  for (size_t i = 0; i < plain.size(); ++i) {
    const auto step_of = [&](optim::AdamW& optimizer, const at::Tensor& parameter) {
      return static_cast<torch::optim::AdamWParamState&>(
                 *optimizer.state().at(parameter.unsafeGetTensorImpl()))
          .step();
    };
    EXPECT_EQ(step_of(with, left_out[i]), step_of(without, plain[i]));
  }
}

}  // namespace
}  // namespace muster::testing
