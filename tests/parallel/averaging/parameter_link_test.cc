// What a parameter server refuses, who keeps what, and who may go on.
#include "muster/parallel/averaging/parameter_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "muster/base/error.h"
#include "muster/parallel/averaging/parameter_client.h"
#include "muster/parallel/averaging/parameter_server.h"
#include "muster/parallel/averaging/worker_pace.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<torch::optim::Optimizer> make_plain_sgd(const std::vector<at::Tensor>& shard) {
  return std::make_unique<torch::optim::SGD>(shard, 0.1);
}

TEST(ParameterServer, RefusesOnEveryRankBeforeTheFirstStep) {
  const auto expect_refusal = [](const ParameterServerOptions& options, const char* words) {
    const auto failures = failures_of_ranks(3, [&](ProcessGroup& group) {
      const at::Tensor weight = torch::zeros({4});
      if (keeps_parameters(group, options)) {
        ParameterServer({weight}, group, make_plain_sgd, options);
      } else {
        ParameterClient({weight}, group, options);
      }
    });
    for (const auto& failure : failures)
      EXPECT_THAT(message_of(failure), HasSubstr(words));
  };
  expect_refusal({.servers = 0}, "expected 1 server or more, got 0");
  expect_refusal({.servers = 3}, "expected a worker beside the servers, got 3 servers of 3 ranks");
  expect_refusal({.servers = 2},
                 "expected a parameter or more for each server, got 2 servers and 1 param");
  expect_refusal({.staleness = -1}, "expected a staleness of 0 steps or more, got -1");
}

TEST(ParameterServer, RefusesWhatDiffersBetweenRanks) {
  const auto expect_refusal = [](const std::function<void(ProcessGroup&)>& body,
                                 const char* words) {
    for (const auto& failure : failures_of_ranks(2, body))
      EXPECT_THAT(message_of(failure), HasSubstr(words));
  };
  const auto make =
      [](ProcessGroup& group, const at::Tensor& weight, const ParameterServerOptions& options) {
        if (keeps_parameters(group, options)) {
          ParameterServer({weight}, group, make_plain_sgd, options);
        } else {
          ParameterClient({weight}, group, options);
        }
      };
  expect_refusal(
      [&](ProcessGroup& group) { make(group, torch::full({2}, 1.0 * group.rank()), {}); },
      "expected the same on every rank, got parameter 0");
  expect_refusal(
      [&](ProcessGroup& group) { make(group, torch::ones({2}), {.staleness = group.rank()}); },
      "got staleness 0 on rank 0 and 1 on rank 1");
  expect_refusal(
      [](ProcessGroup& group) { ParameterServer({torch::ones({2})}, group, make_plain_sgd); },
      "expected a ParameterClient on rank 1, got a ParameterServer");
  expect_refusal([](ProcessGroup& group) { ParameterClient({torch::ones({2})}, group); },
                 "expected a ParameterServer on rank 0, got a ParameterClient");
  expect_refusal(
      [](ProcessGroup& group) {
        if (group.rank() == 1)
          ParameterClient({torch::ones({2})}, group);
        ParameterServer(
            {torch::ones({2})}, group, [](const auto&) -> std::unique_ptr<torch::optim::Optimizer> {
              return nullptr;
            });
      },
      "expected an optimizer, got none (rank 0)");
}

TEST(ParameterServer, NamesTheRanksOfASubGroupAsTheJobDoes) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    auto pair = group.new_group({2, 1});
    if (!pair)
      return;
    const at::Tensor weight = torch::ones({2});
    if (group.rank() == 1) {
      ParameterClient client({weight}, *pair);
      client.pull();
      throw std::runtime_error("out of fuel");
    }
    ParameterServer({weight}, *pair, make_plain_sgd).serve();
  });
  EXPECT_THAT(message_of(failures[2]), HasSubstr("got none: ranks 1 are lost (rank 2)"));
  for (const auto& failure : failures_of_ranks(3, [](ProcessGroup& group) {
         if (auto pair = group.new_group({2, 1}))
           ParameterClient({torch::ones({2})}, *pair);
       }))
    EXPECT_THAT(
        message_of(failure),
        AnyOf("", HasSubstr("expected a ParameterServer on rank 2, got a ParameterClient")));
}

TEST(ParameterClient, NamesAServerThatIsGoneAsTheJobDoes) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    auto pair = group.new_group({2, 1});
    if (!pair)
      return;
    const at::Tensor weight = torch::ones({2});
    if (group.rank() == 2) {
      const ParameterServer server({weight}, *pair, make_plain_sgd);
      throw std::runtime_error("the disk is full");
    }
    ParameterClient client({weight}, *pair);
    client.pull();
  });
  EXPECT_THAT(message_of(failures[1]),
              HasSubstr("ParameterClient: pull on rank 1: expected server rank 2 to answer"));
}

TEST(ParameterClient, RefusesAPushWithoutAPullAndCallsAfterFinish) {
  run_ranks(2, [](ProcessGroup& group) {
    const at::Tensor weight = torch::ones({2});
    if (keeps_parameters(group, {})) {
      ParameterServer({weight}, group, make_plain_sgd).serve();
      return;
    }
    ParameterClient client({weight}, group);
    EXPECT_THROW(client.push(), Error);
    client.pull();
    client.push();
    EXPECT_THROW(client.push(), Error);
    client.finish();
    EXPECT_THROW(client.pull(), Error);
  });
}

TEST(ParameterShards, HaveAboutAsManyBytes) {
  std::vector<at::Tensor> parameters;
  for (const int64_t size : {100, 10, 60, 50, 1, 30})
    parameters.push_back(torch::zeros({size}));
  std::vector<int64_t> sizes;
  for (const auto& shard : parameter_shards(parameters, 2)) {
    sizes.push_back(0);
    for (const at::Tensor& parameter : shard)
      sizes.back() += parameter.numel();
  }
  EXPECT_THAT(sizes, ElementsAre(130, 121));
}

TEST(WorkerPace, CountsFromTheSlowestThatIsHere) {
  WorkerPace pace(3, 1);
  pace.pushed(0);
  EXPECT_TRUE(pace.may_go_on(0));
  pace.pushed(0);
  EXPECT_FALSE(pace.may_go_on(0));
  pace.pushed(1);
  EXPECT_FALSE(pace.may_go_on(0));
  pace.left(2);
  EXPECT_TRUE(pace.may_go_on(0));
  EXPECT_EQ(pace.lead(0), 1);
  pace.left(1);
  EXPECT_EQ(pace.lead(0), 0);
}

}  // namespace
}  // namespace muster::testing
