// Modules of one shape that ranks run in different orders: an error, where their weights were
// mixed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/parallel/sharded/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

class UnitsApart : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends,
                         UnitsApart,
                         ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(UnitsApart, OfOneShapeInDifferentOrders) {
  const auto failures = failures_of_ranks(2,
                                          [](ProcessGroup& group) {
                                            FullySharded sharded(group, {.prefetch = false});
                                            torch::nn::Linear a(4, 4), b(4, 4);
                                            for (const auto& layer : {a, b})
                                              for (const auto& parameter : layer->parameters())
                                                parameter.data().fill_(0.5);
                                            auto first = sharded.wrap(a), second = sharded.wrap(b);
                                            const auto x = torch::ones({2, 4});
                                            group.rank() == 0 ? second(first(x)) : first(second(x));
                                          },
                                          {.backend = GetParam()});
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("expected the same call on every rank"));
}

// Two experts of one shape, of which a batch takes one after the other.
struct Experts {
  explicit Experts(ProcessGroup& group, bool prefetch) : sharded(group, {.prefetch = prefetch}) {
    {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(7);
      for (int i = 0; i < 3; ++i)
        layers.push_back(torch::nn::Linear(4, 4));
    }
    for (const auto& layer : layers)
      experts.push_back(sharded.wrap(layer));
  }
  torch::Tensor run(const std::vector<int>& order, const torch::Tensor& x) {
    torch::Tensor y = x;
    for (const int expert : order)
      y = experts[static_cast<size_t>(expert)](y).tanh();
    return y;
  }
  FullySharded sharded;
  std::vector<torch::nn::Linear> layers;
  std::vector<FullyShardedModule<torch::nn::Linear>> experts;
};

const std::vector<int> kUsual = {0, 1, 2}, kOther = {1, 0, 2};

// Three steps in one order make its calls known to all ranks.
TEST_P(UnitsApart, AfterStepsInOneOrder) {
  for (const bool prefetch : {false, true}) {
    for (const bool trains : {false, true}) {
      const auto failures = failures_of_ranks(
          2,
          [&](ProcessGroup& group) {
            Experts experts(group, prefetch);
            torch::optim::SGD optimizer(experts.sharded.parameters(), 0.1);
            const auto x = torch::full({2, 4}, 1.0 + group.rank());
            for (int step = 0; step < 3; ++step) {
              optimizer.zero_grad();
              experts.run(kUsual, x).sum().backward();
              optimizer.step();
            }
            const at::AutoGradMode mode(trains);
            const auto y = experts.run(group.rank() == 0 ? kUsual : kOther, x).sum();
            if (trains)
              y.backward();
          },
          {.backend = GetParam()});
      for (const auto& failure : failures)
        EXPECT_THAT(message_of(failure), HasSubstr("expected the same call on every rank"))
            << prefetch << trains;
    }
  }
}

// Also in orders that were seen before, which ranks may not mix either.
TEST_P(UnitsApart, InOrdersThatAllHaveSeen) {
  const auto failures = failures_of_ranks(2,
                                          [](ProcessGroup& group) {
                                            Experts experts(group, true);
                                            const torch::NoGradGuard no_grad;
                                            const auto x = torch::ones({2, 4});
                                            for (int step = 0; step < 6; ++step)
                                              experts.run(step % 2 == 0 ? kUsual : kOther, x);
                                            experts.run(group.rank() == 0 ? kUsual : kOther, x);
                                          },
                                          {.backend = GetParam()});
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("expected the same call on every rank"));
}

TEST_P(UnitsApart, OrdersThatAllRanksChangeTrainAsOneProcess) {
  const auto order = [](int step) -> const std::vector<int>& {
    return step % 3 == 1 ? kOther : kUsual;
  };
  std::vector<float> expected;
  run_ranks(1, [&](ProcessGroup& group) {
    Experts alone(group, true);
    torch::optim::SGD optimizer(alone.sharded.parameters(), 0.1);
    for (int step = 0; step < 7; ++step) {
      optimizer.zero_grad();
      const auto loss = alone.run(order(step), mlp_batch(step).x.narrow(1, 0, 4)).square().mean();
      loss.backward();
      optimizer.step();
      expected.push_back(loss.item<float>());
    }
  });
  run_ranks(2,
            [&](ProcessGroup& group) {
              Experts experts(group, true);
              torch::optim::SGD optimizer(experts.sharded.parameters(), 0.1);
              for (int step = 0; step < 7; ++step) {
                optimizer.zero_grad();
                const auto x = mlp_batch(step).of(group.rank(), 2).x.narrow(1, 0, 4);
                const auto loss = experts.run(order(step), x).square().mean();
                loss.backward();
                optimizer.step();
                auto mean = loss.detach().clone();
                group.all_reduce(mean, ReduceOp::avg);
                EXPECT_NEAR(mean.item<float>(), expected[static_cast<size_t>(step)], 1e-5);
              }
            },
            {.backend = GetParam()});
}

}  // namespace
}  // namespace muster::testing
