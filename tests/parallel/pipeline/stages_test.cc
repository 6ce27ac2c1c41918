// Cuts of a Sequential, and one model over several devices.
#include "muster/parallel/pipeline/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <random>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

torch::nn::Sequential uneven_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(8, 256),
                               torch::nn::Tanh(),
                               torch::nn::Linear(256, 256),
                               torch::nn::BatchNorm1d(256),
                               torch::nn::Linear(256, 4));
}

std::vector<LayerCost> costs_from(const std::vector<double>& seconds) {
  std::vector<LayerCost> costs;
  for (const double s : seconds)
    costs.push_back(
        {.name = cat(costs.size()), .seconds = s, .parameter_bytes = static_cast<int64_t>(10 * s)});
  return costs;
}

double dearest_of(const StageCut& cut, const std::vector<LayerCost>& costs) {
  double dearest = 0;
  for (size_t stage = 0; stage < cut.begins.size(); ++stage) {
    const size_t end = stage + 1 < cut.begins.size() ? cut.begins[stage + 1] : costs.size();
    double sum = 0;
    for (size_t i = cut.begins[stage]; i < end; ++i)
      sum += costs[i].seconds;
    dearest = std::max(dearest, sum);
  }
  return dearest;
}

// By trying all cuts.
double least_dearest(const std::vector<LayerCost>& costs,
                     size_t stages,
                     std::vector<size_t> begins = {}) {
  if (begins.size() + 1 == stages)
    return dearest_of(cut_at(costs.size(), begins), costs);
  double least = 1e30;
  for (size_t next = begins.empty() ? 1 : begins.back() + 1; next < costs.size(); ++next) {
    auto longer = begins;
    longer.push_back(next);
    if (costs.size() - next >= stages - longer.size())
      least = std::min(least, least_dearest(costs, stages, longer));
  }
  return least;
}

TEST(Stages, TheCutIsTheBestOfAll) {
  EXPECT_EQ(balanced_cut(costs_from({1, 1, 1, 3}), 2), (StageCut{{0, 3}}));
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    std::vector<double> seconds;
    for (size_t layer = 0; layer < 3 + random() % 6; ++layer)
      seconds.push_back(1 + static_cast<double>(random() % 9));
    const auto costs = costs_from(seconds);
    for (size_t stages = 1; stages <= costs.size(); ++stages)
      EXPECT_EQ(dearest_of(balanced_cut(costs, stages), costs), least_dearest(costs, stages))
          << join(seconds, " ");
  }
}

TEST(Stages, WhatCannotBeIsRefused) {
  const auto refused = [](const std::function<void()>& body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto costs = costs_from({1, 2, 3});
  EXPECT_EQ(balanced_cut(costs, 2, 30), (StageCut{{0, 2}}));
  EXPECT_THAT(refused([&] { balanced_cut(costs, 2, 29); }), HasSubstr("do not fit into 2"));
  EXPECT_THAT(refused([&] { balanced_cut(costs, 4); }),
              HasSubstr("1 to 3 stages of 3 layers, got 4"));
  EXPECT_THAT(refused([] { cut_at(5, {3, 3}); }), HasSubstr("got 0, 3, 3"));
  EXPECT_THAT(refused([] { cut_at(5, {5}); }), HasSubstr("from 0 to at most 4, got 0, 5"));
  EXPECT_THAT(
      refused([] { Stages(uneven_model(), cut_at(5, {2}), std::vector<c10::Device>{at::kCPU}); }),
      HasSubstr("a device for each of 2 stages, got 1"));
  EXPECT_THAT(refused([] {
                measure_costs(torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::LSTM(2, 2)),
                              torch::ones({3, 2}));
              }),
              HasSubstr("got an error from '1'"));
}

TEST(Stages, MeasuringLeavesTheModelAsItIs) {
  auto model = uneven_model();
  const auto sample = torch::randn({32, 8});
  model->forward(sample).sum().backward();
  const auto before = model->parameters()[0].grad().clone();
  const auto running = model->buffers()[0].clone();
  const auto costs = measure_costs(model, sample);
  ASSERT_EQ(costs.size(), 5u);
  EXPECT_TRUE(model->parameters()[0].grad().equal(before));
  EXPECT_TRUE(model->buffers()[0].equal(running));
  EXPECT_EQ(costs[2].parameter_bytes, 4 * (256 * 256 + 256));
  EXPECT_EQ(costs[4].activation_bytes, 4 * 32 * 4);
  EXPECT_THAT(to_text(cut_at(5, {2}), costs), HasSubstr("stage 1: layers 2-4 (2 to 4)"));
}

struct Waiting : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    std::this_thread::sleep_for(kTime);
    return x;
  }
  static constexpr std::chrono::milliseconds kTime{2};
};

// The second of three layers takes a known time at least. The least of each layer's times is at
// most the mean, so that all of them come to no more than a pass.
TEST(Stages, EachLayerHasItsOwnTime) {
  constexpr int kRepeats = 3;
  torch::nn::Sequential model(torch::nn::Linear(8, 8), Waiting(), torch::nn::Linear(8, 8));
  const auto start = Clock::now();
  const auto costs = measure_costs(model, torch::ones({2, 8}), kRepeats);
  const double pass = seconds_since(start) / kRepeats;
  ASSERT_EQ(costs.size(), 3u);
  EXPECT_GE(costs[1].seconds, std::chrono::duration<double>(Waiting::kTime).count());
  EXPECT_GT(std::min(costs[0].seconds, costs[2].seconds), 0);
  EXPECT_LE(costs[0].seconds + costs[1].seconds + costs[2].seconds, pass);
}

TEST(Stages, ALayerMayWriteIntoItsInput) {
  torch::nn::Sequential model(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)),
                              torch::nn::Linear(8, 4));
  const auto sample = torch::full({2, 8}, -1);
  EXPECT_EQ(measure_costs(model, sample.to(at::kFloat)).size(), 2u);
  EXPECT_EQ(sample.min().item<int64_t>(), -1);
}

// Each rank has measured other times.
TEST(Stages, AveragedCostsAreAlikeOnAllRanks) {
  std::vector<StageCut> cuts(3);
  run_ranks(3, [&](ProcessGroup& group) {
    std::vector<LayerCost> costs = costs_from({1, 1, 1, 1});
    costs[static_cast<size_t>(group.rank())].seconds = 5;
    costs = average_costs(costs, group);
    EXPECT_DOUBLE_EQ(costs[0].seconds, 7.0 / 3);
    cuts[static_cast<size_t>(group.rank())] = balanced_cut(costs, 2);
  });
  EXPECT_EQ(cuts[0], cuts[1]);
  EXPECT_EQ(cuts[0], cuts[2]);
}

TEST(Stages, OneModelOverSeveralDevicesIsThePlainModel) {
  at::set_num_threads(1);
  auto plain = uneven_model();
  Stages cut(uneven_model(), cut_at(5, {2, 4}), std::vector<c10::Device>(3, at::kCPU));
  EXPECT_EQ(cut->named_parameters().keys(), plain->named_parameters().keys());
  torch::optim::SGD one(plain->parameters(), 0.1), other(cut->parameters(), 0.1);
  torch::manual_seed(2);
  for (int step = 0; step < 5; ++step) {
    const auto x = torch::randn({16, 8}), y = torch::randn({16, 4});
    one.zero_grad();
    other.zero_grad();
    const auto expected = torch::mse_loss(plain->forward(x), y);
    const auto loss = torch::mse_loss(cut->forward(x), y);
    EXPECT_TRUE(loss.equal(expected));
    expected.backward();
    loss.backward();
    one.step();
    other.step();
  }
}

}  // namespace
}  // namespace muster::testing
