// What averages a model finds the parameters where they are now: torch::load, net->to(device) and
// sharding give them other memory.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <sstream>

#include "muster/parallel/averaging/diloco.h"
#include "muster/parallel/averaging/gossip.h"
#include "muster/parallel/averaging/local_sgd.h"
#include "muster/parallel/averaging/parameter_client.h"
#include "muster/parallel/averaging/parameter_server.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

// Puts a number into the parameters as a program does: from what torch::save has written.
void load_into(const std::vector<at::Tensor>& parameters, double value) {
  for (at::Tensor parameter : parameters) {
    std::stringstream file;
    torch::save(torch::full({3}, value), file);
    torch::load(parameter, file);
  }
}

// Loads the parameters, each rank a number of its own.
void replace_by_rank(const std::vector<at::Tensor>& parameters, const ProcessGroup& group) {
  load_into(parameters, 2.0 * group.rank());
}

std::vector<at::Tensor> parameters_of_ones() {
  return {torch::ones({3}).requires_grad_(), torch::ones({3}).requires_grad_()};
}

void expect_all_are(const std::vector<at::Tensor>& parameters, double value) {
  for (const at::Tensor& parameter : parameters)
    EXPECT_TRUE(parameter.eq(value).all().item<bool>());
}

TEST(AveragedMemory, LocalSgdAndGossipAverageWhatIsThereNow) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto local = parameters_of_ones(), gossiped = parameters_of_ones();
    LocalSGD local_sgd(local, group, {.every = 1});
    GossipAverage gossip(gossiped, group);
    replace_by_rank(local, group);
    replace_by_rank(gossiped, group);
    local_sgd.step();
    gossip.step();
    expect_all_are(local, 1);
    expect_all_are(gossiped, 1);
    replace_by_rank(gossiped, group);
    gossip.average();
    expect_all_are(gossiped, 1);
  });
}

TEST(AveragedMemory, DiLoCoMovesWhatIsThereNow) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto parameters = parameters_of_ones();
    DiLoCo outer(parameters, group, {.every = 1, .learning_rate = 1, .momentum = 0});
    replace_by_rank(parameters, group);
    outer.step();
    expect_all_are(parameters, 1);
    load_into(parameters, 5.0 + group.rank());
    outer.step();
    expect_all_are(parameters, 5.5);
  });
}

// A server's values are the ones that count, whatever a worker has loaded.
TEST(AveragedMemory, AParameterServerServesWhatItHasLoaded) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto parameters = parameters_of_ones();
    if (keeps_parameters(group, {})) {
      ParameterServer server(parameters, group, [](const auto& shard) {
        return std::make_unique<torch::optim::SGD>(shard, 1.0);
      });
      load_into(parameters, 5);
      server.serve();
      return expect_all_are(parameters, 3);
    }
    ParameterClient client(parameters, group);
    load_into(parameters, 7);
    client.pull();
    expect_all_are(parameters, 5);
    for (const at::Tensor& parameter : parameters)
      parameter.mutable_grad() = torch::full({3}, 2.0);
    client.push();
    client.pull();
    expect_all_are(parameters, 3);
    client.finish();
  });
}

}  // namespace
}  // namespace muster::testing
