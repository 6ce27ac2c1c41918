// LBFGS with LibTorch's own options over ranks with unequal data: it stops by the loss, so all need
// one loss.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/ddp/distributed_data_parallel.h"
#include "muster/train/mean_over_ranks.h"
#include "tests/support/ranks.h"
#include "tests/train/two_layers.h"

namespace muster::testing {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kRows = 12;

// Rank r's rows are r + 1 times as large: near the end each rank's own loss changes by another
// amount.
at::Tensor inputs_of_rank(int rank) {
  return fixed_data(kRows, static_cast<uint64_t>(10 + rank)) * (1 + rank);
}

at::Tensor wanted(const at::Tensor& rows) {
  return torch::stack({rows.sum(1).sin(), rows.prod(1).tanh()}, 1);
}

torch::optim::LBFGSOptions lbfgs_options(bool searches) {
  torch::optim::LBFGSOptions options(searches ? 1 : 0.5);
  if (searches)
    options.line_search_fn("strong_wolfe");
  return options;
}

struct Converged {
  std::vector<double> weights;
  int evaluations = 0;
  double loss = 0;
};

// 12 steps of up to 20 iterations: to convergence.
template <class Loss>
Converged converge(torch::optim::LBFGS& optimizer, torch::nn::Linear& net, const Loss& loss_of) {
  Converged result;
  for (int step = 0; step < 12; ++step) {
    const auto loss = optimizer.step([&] {
      ++result.evaluations;
      optimizer.zero_grad();
      return loss_of();
    });
    result.loss = loss.template item<double>();
  }
  result.weights = weights_of(*net);
  return result;
}

torch::nn::Linear linear_net() {
  torch::nn::Linear net(4, 2);
  net->to(torch::kDouble);
  torch::nn::init::constant_(net->weight, 0.1);
  torch::nn::init::constant_(net->bias, 0.0);
  return net;
}

Converged converge_alone(bool searches) {
  auto net = linear_net();
  torch::optim::LBFGS optimizer(net->parameters(), lbfgs_options(searches));
  return converge(optimizer, net, [&] {
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (int rank = 0; rank < kRanks; ++rank)
      sum = sum + torch::mse_loss(net(inputs_of_rank(rank)), wanted(inputs_of_rank(rank)));
    const auto loss = sum / kRanks;
    loss.backward();
    return loss;
  });
}

TEST(Lbfgs, RanksConvergeTogether) {
  for (const bool searches : {false, true}) {
    const Converged alone = converge_alone(searches);
    std::vector<Converged> of_ranks(kRanks);
    run_ranks(kRanks, [&](ProcessGroup& group) {
      auto net = linear_net();
      DistributedDataParallel model(net, group);
      torch::optim::LBFGS optimizer(model.parameters(), lbfgs_options(searches));
      const auto mine = inputs_of_rank(group.rank());
      of_ranks[static_cast<size_t>(group.rank())] = converge(optimizer, net, [&] {
        const auto loss = torch::mse_loss(model(mine), wanted(mine));
        loss.backward();
        return mean_over_ranks(loss, group);
      });
    });
    for (const Converged& rank : of_ranks) {
      EXPECT_EQ(rank.weights, of_ranks[0].weights);
      EXPECT_EQ(rank.evaluations, of_ranks[0].evaluations);
    }
    EXPECT_LT(of_ranks[0].evaluations, 12 * 20) << "it stops by itself";
    EXPECT_NEAR(of_ranks[0].loss, alone.loss, 1e-6 * alone.loss);
    std::cout << "  LBFGS" << (searches ? " with line search: " : ": ") << of_ranks[0].evaluations
              << " evaluations, alone " << alone.evaluations << "; largest difference "
              << largest_difference(of_ranks[0].weights, alone.weights) << "\n";
    EXPECT_LE(largest_difference(of_ranks[0].weights, alone.weights), 1e-4);
  }
}

}  // namespace
}  // namespace muster::testing
