// Every option that is a fraction, a rate or a size: none takes what is no number, or no finite
// one. A comparison with NaN is false, so that a rule which names what is wrong lets it pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/ddp/hooks.h"
#include "muster/parallel/averaging/diloco.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "muster/train/ema.h"
#include "muster/train/precision.h"
#include "muster/train/rebalance.h"
#include "muster/train/schedule.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using torch::optim::SGD;

struct NumberOption {
  std::string name;
  std::function<void(double value)> give;
  bool may_be_negative = false;
};

// Those of one rank, over its group.
std::vector<NumberOption> number_options(ProcessGroup& group) {
  const auto plateau = [](const PlateauOptions& options) {
    SGD optimizer({torch::ones({2}, torch::requires_grad())}, 0.1);
    Plateau lowers(optimizer, options);
  };
  const auto precision = [](const PrecisionOptions& options) {
    Precision scales(torch::kCPU, options);
  };
  const auto diloco = [&](const DiLoCoOptions& options) {
    DiLoCo averages({torch::ones({2})}, group, options);
  };
  return {
      {"bucket_mb",
       [&](double x) {
         ShardedOptimizer<SGD> divided({torch::ones({2}, torch::requires_grad())},
                                       torch::optim::SGDOptions(0.1),
                                       group,
                                       ShardedOptimizerOptions{.bucket_mb = x});
       }},
      {"bucket_cap_mb",
       [&](double x) {
         DistributedDataParallel wrapped(torch::nn::Linear(2, 1), group, {.bucket_cap_mb = x});
       }},
      {"min_compression_rate", [](double x) { power_sgd({.min_compression_rate = x}); }},
      {"orthogonalization_epsilon", [](double x) { power_sgd({.orthogonalization_epsilon = x}); }},
      {"density", [](double x) { top_k({.density = x}); }},
      {"learning_rate", [=](double x) { diloco({.learning_rate = x}); }},
      {"momentum", [=](double x) { diloco({.momentum = x}); }},
      {"at_least", [&](double x) { Rebalance(group, {1}, {.at_least = x}); }, true},
      {"init_scale", [=](double x) { precision({.type = "fp16", .init_scale = x}); }},
      {"growth_factor", [=](double x) { precision({.type = "fp16", .growth_factor = x}); }},
      {"backoff_factor", [=](double x) { precision({.type = "fp16", .backoff_factor = x}); }},
      {"decay",
       [](double x) {
         torch::nn::Linear model(2, 1);
         Ema average(*model, x);
       }},
      {"factor", [=](double x) { plateau({.factor = x}); }},
      {"threshold", [=](double x) { plateau({.threshold = x}); }, true},
      {"min_lr", [=](double x) { plateau({.min_lr = x}); }, true},
      {"eps", [=](double x) { plateau({.eps = x}); }, true},
      {"constant", [](double x) { rate::constant(x); }},
      {"from", [](double x) { rate::linear({.steps = 2, .from = x}); }},
      {"to", [](double x) { rate::linear({.steps = 2, .to = x}); }},
      {"warmup_from", [](double x) { rate::cosine({.steps = 4, .warmup = 2, .warmup_from = x}); }},
      {"final_fraction", [](double x) { rate::cosine({.steps = 4, .final_fraction = x}); }},
      {"rising", [](double x) { rate::one_cycle({.steps = 4, .rising = x}); }},
      {"div_factor", [](double x) { rate::one_cycle({.steps = 4, .div_factor = x}); }},
      {"final_div_factor", [](double x) { rate::one_cycle({.steps = 4, .final_div_factor = x}); }},
      {"power", [](double x) { rate::polynomial({.steps = 4, .power = x}); }},
      {"gamma of step", [](double x) { rate::step(2, x); }},
      {"gamma of multi_step", [](double x) { rate::multi_step({2}, x); }},
      {"gamma of exponential", [](double x) { rate::exponential(x); }},
  };
}

TEST(OptionNumbers, AreFiniteAndOfTheirSign) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  run_ranks(1, [](ProcessGroup& group) {
    for (const NumberOption& option : number_options(group)) {
      for (const double wrong : {kNan, kInfinity, -kInfinity, -0.5}) {
        if (wrong == -0.5 && option.may_be_negative)
          continue;
        EXPECT_THROW(option.give(wrong), Error) << option.name << " " << wrong;
      }
    }
  });
}

}  // namespace
}  // namespace muster::testing
