// Ranks whose forwards and backwards are not the same: found within the step, on all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <future>
#include <memory>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class StepsOfRanks : public ::testing::TestWithParam<const char*> {
 protected:
  InitOptions over() const { return {.backend = GetParam()}; }
};

// One rank leaves out a backward (`if (isnan(loss)) continue;`), the other does so later: as many
// reductions on both. `keep` gets every loss, before it is looked at.
std::vector<std::exception_ptr> failures_of_skipping(
    const InitOptions& over,
    bool with_buffers,
    const std::function<void(int, const at::Tensor&)>& keep) {
  return failures_of_ranks(
      2,
      [&](ProcessGroup& group) {
        auto net = two_layers();
        if (with_buffers)
          net->push_back(torch::nn::BatchNorm1d(2));
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 6; ++step) {
          const auto loss = model(batch_of(group.rank(), step)).sum();
          keep(group.rank(), loss);
          if (step == (group.rank() == 0 ? 2 : 4))
            continue;
          loss.backward();
          EXPECT_LT(step, 3) << "the first backward of different steps must not pass";
          drop_gradients(*net);
        }
      },
      over);
}

TEST_P(StepsOfRanks, ASkippedBackwardIsFoundWithinTheStep) {
  std::vector<at::Tensor> last(2), sum(2, torch::zeros({}));
  const std::vector<std::function<void(int, const at::Tensor&)>> ways{
      [](int, const at::Tensor&) {},
      [&](int rank, const at::Tensor& loss) { last[static_cast<size_t>(rank)] = loss; },
      [&](int rank, const at::Tensor& loss) {
        at::Tensor& mine = sum[static_cast<size_t>(rank)];
        mine = mine.detach() + loss;
      }};
  for (const auto& keep : ways) {
    for (const auto& failure : failures_of_skipping(over(), false, keep)) {
      EXPECT_THAT(message_of(failure),
                  AllOf(HasSubstr("3 backwards and 1 forwards without one on rank 0"),
                        HasSubstr("3 backwards and 0 forwards without one on rank 1"),
                        HasSubstr("gradients of different steps")));
    }
  }
}

// The rank that goes on broadcasts buffers, while its peer waits at the end of its backward.
TEST_P(StepsOfRanks, ASkippedBackwardOfAModelWithBuffersIsAnError) {
  const auto failures = failures_of_skipping(over(), true, [](int, const at::Tensor&) {});
  EXPECT_THAT(message_of(failures[0]) + message_of(failures[1]),
              HasSubstr("run or skip backwards, alike"));
  for (const auto& failure : failures) {
    EXPECT_THAT(message_of(failure),
                AnyOf(HasSubstr("same call on every rank"),
                      HasSubstr("first rank that failed has the cause")));
  }
}

TEST_P(StepsOfRanks, ABackwardThatFailsOnOneRankOnlyIsAnErrorOnBoth) {
  const auto failures = failures_of_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group, {.bucket_cap_mb = 0.00001});
        for (int step = 0; step < 4; ++step) {
          auto& weight = net[0]->as<torch::nn::Linear>()->weight;
          const auto hook = weight.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
            if (step == 2 && group.rank() == 0)
              throw std::runtime_error("on the way");
            return gradient;
          });
          try {
            model(batch_of(group.rank(), step)).sum().backward();
          } catch (const std::runtime_error& error) {
            if (std::string(error.what()).find("on the way") == std::string::npos)
              throw;
          }
          weight.remove_hook(hook);
          drop_gradients(*net);
        }
      },
      over());
  EXPECT_THAT(message_of(failures[0]),
              HasSubstr("expected every rank after a backward that has failed"));
  EXPECT_THAT(message_of(failures[1]),
              AnyOf(HasSubstr("same call on every rank"),
                    HasSubstr("first rank that failed has the cause")));
}

// On rank 0 before it comes to the first output, on rank 1 after.
TEST_P(StepsOfRanks, WhereABackwardHasFailedIsForgottenWithIt) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 4; ++step) {
          const auto first = model(batch_of(group.rank(), step)).sum();
          const auto second = model(batch_of(group.rank(), step)).sum();
          auto& weight = net[0]->as<torch::nn::Linear>()->weight;
          const auto fail = [](const at::Tensor&) -> at::Tensor {
            throw std::runtime_error("on the way");
          };
          if (step != 1) {
            (first + second).backward();
            EXPECT_TRUE(same_everywhere(group, net->parameters()));
          } else {
            const auto hook =
                group.rank() == 0 ? first.register_hook(fail) : weight.register_hook(fail);
            EXPECT_THROW((first + second).backward(), std::runtime_error);
            if (group.rank() == 1)
              weight.remove_hook(hook);
          }
          drop_gradients(*net);
        }
      },
      over());
}

// Such a batch is left out, and the rank takes the next one.
TEST_P(StepsOfRanks, AForwardThatThrewIsNoForwardWithoutABackward) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 3; ++step) {
          for (int wrong = 0; wrong < 2 && group.rank() == 0; ++wrong)
            EXPECT_THROW(model(torch::ones({2, 7})), std::exception);
          model(batch_of(group.rank(), step)).sum().backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters()));
          drop_gradients(*net);
        }
      },
      over());
}

// Rank 0 keeps what it has generated; the forward that made it has no backward on any rank.
TEST_P(StepsOfRanks, WhatARankKeepsChangesNothing) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        torch::nn::Linear net(3, 3);
        DistributedDataParallel model(net, group);
        std::vector<at::Tensor> pictures;
        for (int step = 0; step < 4; ++step) {
          const auto fake = model(batch_of(group.rank(), step));
          if (group.rank() == 0)
            pictures.push_back(fake);
          model(batch_of(group.rank(), step)).sum().backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters()));
          drop_gradients(*net);
        }
      },
      over());
}

TEST_P(StepsOfRanks, RolloutsOfDifferentLengthsWhereStepsAreNotChecked) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group, {.check_steps = false});
        for (int step = 0; step < 3; ++step) {
          for (int i = 0; i <= group.rank(); ++i)
            model(batch_of(i));
          model(batch_of(group.rank(), step)).sum().backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters()));
          drop_gradients(*net);
        }
      },
      over());
}

TEST_P(StepsOfRanks, ABackwardThatAllRanksSkipIsFine) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 5; ++step) {
          const auto loss = model(batch_of(group.rank(), step)).sum();
          if (step == 2)
            continue;
          loss.backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters()));
          drop_gradients(*net);
        }
      },
      over());
}

// Pictures of different numbers of objects: as many forwards as there are, and one backward.
TEST_P(StepsOfRanks, AsManyForwardsAsARankNeedsBeforeOneBackward) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 4; ++step) {
          auto loss = torch::zeros({});
          for (int crop = 0; crop <= (step + group.rank()) % 3; ++crop) {
            loss = loss + model(batch_of(group.rank(), crop)).sum();
          }
          loss.backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters()));
          drop_gradients(*net);
        }
      },
      over());
}

TEST_P(StepsOfRanks, EvaluationOnOneRankIsNoSkippedStep) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 3; ++step) {
          model(batch_of(group.rank(), step)).sum().backward();
          drop_gradients(*net);
          if (group.rank() != 0)
            continue;
          {
            const torch::NoGradGuard no_grad;
            model(batch_of(0));
          }
          net->eval();
          model(batch_of(0));
          net->train();
        }
      },
      over());
}

// `if (rank == 0) evaluate(model);` after the last step: the other rank has left.
TEST_P(StepsOfRanks, EvaluationOnOneRankAfterTheLastStepNamesTheModule) {
  for (const bool leaves : {true, false}) {
    InitOptions options = over();
    options.timeout = std::chrono::seconds(2);
    std::promise<void> evaluated;
    const auto failures = failures_of_ranks(
        2,
        [&](ProcessGroup& group) {
          auto net = two_layers();
          net->push_back(torch::nn::BatchNorm1d(2));
          DistributedDataParallel model(net, group);
          for (int step = 0; step < 3; ++step)
            model(batch_of(group.rank(), step)).sum().backward();
          if (group.rank() == 1) {
            if (leaves)
              return group.shutdown();
            return evaluated.get_future().wait();
          }
          const std::shared_ptr<void> done(nullptr, [&](void*) { evaluated.set_value(); });
          net->eval();
          const torch::NoGradGuard no_grad;
          model(batch_of(0));
        },
        options);
    EXPECT_THAT(
        message_of(failures[0]),
        AllOf(HasSubstr("at the beginning of a forward (rank 0); forward is collective here"),
              HasSubstr("call the forward of module()")))
        << leaves;
  }
}

INSTANTIATE_TEST_SUITE_P(Over,
                         StepsOfRanks,
                         ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace muster::testing
