// Gossip averaging: who meets whom, and the formula.
#include "muster/parallel/averaging/gossip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "muster/base/error.h"
#include "tests/parallel/averaging/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

TEST(GossipPeer, MeetsEveryOtherRankOnceInARound) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    const int round = ranks % 2 == 0 ? ranks - 1 : ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      std::set<int> met;
      for (int64_t step = 0; step < round; ++step) {
        const std::optional<int> peer = gossip_peer(rank, ranks, step);
        if (!peer)
          continue;
        EXPECT_NE(*peer, rank);
        EXPECT_EQ(gossip_peer(*peer, ranks, step), rank) << ranks << " ranks, step " << step;
        EXPECT_EQ(gossip_peer(rank, ranks, step + round), peer);
        met.insert(*peer);
      }
      EXPECT_EQ(std::ssize(met), ranks - 1) << "rank " << rank << " of " << ranks;
    }
  }
  EXPECT_EQ(gossip_peer(0, 1, 5), std::nullopt);
}

class GossipTest : public ::testing::TestWithParam<std::tuple<const char*, int>> {};
INSTANTIATE_TEST_SUITE_P(Backends,
                         GossipTest,
                         ::testing::Combine(::testing::Values("shm", "gloo"),
                                            ::testing::Values(3, 4)));

// Every loss of all workers in one process, exactly: halves of two numbers have no order.
TEST_P(GossipTest, EqualsTheSimulationOfAllWorkers) {
  const auto [backend, ranks] = GetParam();
  constexpr int64_t kSteps = 9;
  at::set_num_threads(1);
  std::vector<LocalTraining> all = local_copies(local_mlp, ranks),
                             mine = local_copies(local_mlp, ranks);
  const auto learn = [](LocalTraining& training, int worker, int64_t step) {
    torch::optim::SGD sgd(training.net->parameters(), 0.2);
    training.net->zero_grad();
    at::Tensor loss = training.loss(worker, step);
    loss.backward();
    sgd.step();
    return loss.item<double>();
  };
  std::vector<std::vector<double>> expected(ranks), got(ranks);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int w = 0; w < ranks; ++w)
      expected[w].push_back(learn(all[w], w, step));
    for (int w = 0; w < ranks; ++w) {
      const std::optional<int> peer = gossip_peer(w, ranks, step);
      if (peer && w < *peer)
        average_copies({&all[w], &all[*peer]});
    }
  }
  run_ranks(ranks,
            [&](ProcessGroup& group) {
              at::set_num_threads(1);
              LocalTraining& training = mine[group.rank()];
              GossipAverage gossip(training.net->parameters(), group);
              for (int64_t step = 0; step < kSteps; ++step) {
                got[group.rank()].push_back(learn(training, group.rank(), step));
                gossip.step();
              }
              gossip.average();
            },
            {.backend = backend});
  EXPECT_EQ(got, expected);
  for (int w = 1; w < ranks; ++w)
    EXPECT_EQ(largest_difference(mine[0].net->parameters(), mine[w].net->parameters()), 0);
}

TEST(GossipAverage, RefusesModelsThatDiffer) {
  const auto failures = failures_of_ranks(
      2, [](ProcessGroup& group) { GossipAverage({torch::full({2}, 1.0 * group.rank())}, group); });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                ::testing::HasSubstr("GossipAverage: expected the same on every rank"));
}

}  // namespace
}  // namespace muster::testing
