// Ranks that train on the same samples are told of it where gradients go to their owners too: once
// a model, and only where it is so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/parallel/sharded/models.h"
#include "tests/parallel/sharded/two_hosts.h"
#include "tests/support/ranks.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int kRanks = 3;
constexpr const char* kSameSamples = "expected each rank to train on samples of its own";

// Which part of a step's batch a rank takes.
using PartOf = std::function<int(int rank, int64_t step)>;

const PartOf its_own = [](int rank, int64_t) {
  return rank;
};
const PartOf the_first = [](int, int64_t) {
  return 0;
};

template <class Model>
void backward_of(Model& model, const ProcessGroup& group, const PartOf& part, int64_t step) {
  const ShardedBatch batch = mlp_batch(step).of(part(group.rank(), step), group.size());
  sharded_loss(model->forward(batch.x), batch.y).backward();
}

// A way to train, over these parts of each batch.
using Training = std::function<void(ProcessGroup& group, const PartOf& part, int64_t steps)>;

void train_fully_sharded_by(FullySharded& sharded,
                            ProcessGroup& group,
                            const PartOf& part,
                            int64_t steps) {
  auto model = torch::nn::ModuleHolder<LayeredMlpImpl>(sharded_mlp(), sharded);
  SGD optimizer(sharded.parameters(), SGDOptions(0.01));
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    backward_of(model, group, part, step);
    optimizer.step();
  }
}

void train_fully_sharded(ProcessGroup& group, const PartOf& part, int64_t steps) {
  FullySharded sharded(group);
  train_fully_sharded_by(sharded, group, part, steps);
}

void train_with_sharded_gradients_by(ProcessGroup shards,
                                     const ShardedOptimizerOptions& options,
                                     ProcessGroup& group,
                                     const PartOf& part,
                                     int64_t steps) {
  auto model = sharded_mlp();
  ShardedOptimizer<SGD> optimizer(model->parameters(), SGDOptions(0.01), shards, options);
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    backward_of(model, group, part, step);
    optimizer.step();
  }
}

void train_with_sharded_gradients(ProcessGroup& group, const PartOf& part, int64_t steps) {
  train_with_sharded_gradients_by(group, {.gradients = true}, group, part, steps);
}

std::string printed_by(const Training& train,
                       const PartOf& part,
                       int64_t steps,
                       int ranks = kRanks) {
  ::testing::internal::CaptureStderr();
  run_ranks(ranks, [&](ProcessGroup& group) { train(group, part, steps); });
  return ::testing::internal::GetCapturedStderr();
}

class SameSamplesOfShards : public ::testing::TestWithParam<Training> {};

TEST_P(SameSamplesOfShards, AreSaidOnce) {
  const std::string printed = printed_by(GetParam(), the_first, 6);
  EXPECT_EQ(times(printed, kSameSamples), 1U) << printed;
  EXPECT_THAT(printed, HasSubstr("got the same gradients on ranks 0 and 1 in the first 3"));
}

TEST_P(SameSamplesOfShards, OfSomeRanksAreSaid) {
  const PartOf last_two_alike = [](int rank, int64_t) {
    return rank == 0 ? 0 : 1;
  };
  EXPECT_THAT(printed_by(GetParam(), last_two_alike, 3),
              HasSubstr("the same gradients on ranks 1 and 2"));
}

TEST_P(SameSamplesOfShards, OfNoneOrOfAFewStepsAreNot) {
  const PartOf at_first_alike = [](int rank, int64_t step) {
    return step < 2 ? 0 : rank;
  };
  EXPECT_THAT(printed_by(GetParam(), its_own, 5), Not(HasSubstr(kSameSamples)));
  EXPECT_THAT(printed_by(GetParam(), at_first_alike, 5), Not(HasSubstr(kSameSamples)));
  EXPECT_THAT(printed_by(GetParam(), the_first, 2), Not(HasSubstr(kSameSamples)));
}

INSTANTIATE_TEST_SUITE_P(Over,
                         SameSamplesOfShards,
                         ::testing::Values(train_fully_sharded, train_with_sharded_gradients));

// Loaders that know a rank by its number in its host give every host the same samples.
TEST(SameSamplesOfHosts, AreSaidOnce) {
  const PartOf by_rank_of_host = [](int rank, int64_t) {
    return rank % 2;
  };
  const Training fully_sharded = [](ProcessGroup& group, const PartOf& part, int64_t steps) {
    TwoHosts hosts(group);
    FullySharded sharded(hosts.inside, {.replicate_group = hosts.across});
    train_fully_sharded_by(sharded, group, part, steps);
  };
  const Training zero_two = [](ProcessGroup& group, const PartOf& part, int64_t steps) {
    TwoHosts hosts(group);
    train_with_sharded_gradients_by(
        hosts.inside, {.gradients = true, .replicate_group = hosts.across}, group, part, steps);
  };
  for (const Training& train : {fully_sharded, zero_two}) {
    const std::string printed = printed_by(train, by_rank_of_host, 6, 4);
    EXPECT_EQ(times(printed, kSameSamples), 1U) << printed;
    EXPECT_THAT(printed, HasSubstr("got the same gradients on ranks 0 and 2 in the first 3"));
    EXPECT_THAT(printed_by(train, its_own, 6, 4), Not(HasSubstr(kSameSamples)));
  }
}

// The exchange of samples goes on alike on all ranks after a backward that has failed on all.
TEST(SampledGradients, AFailedBackwardIsNoneOfTheFirst) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group);
    auto model = torch::nn::ModuleHolder<LayeredMlpImpl>(sharded_mlp(), sharded);
    SGD optimizer(sharded.parameters(), SGDOptions(0.01));
    const auto failing = [](const at::Tensor&) -> at::Tensor {
      throw std::runtime_error("a hook that fails");
    };
    for (int64_t step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      const ShardedBatch batch = mlp_batch(step).of(group.rank(), group.size());
      const at::Tensor hidden = model->layers[0](batch.x);
      if (step == 1)
        hidden.register_hook(failing);
      const at::Tensor output =
          model->layers[2](torch::tanh(model->layers[1](torch::tanh(hidden))));
      const at::Tensor loss = sharded_loss(output, batch.y);
      if (step == 1) {
        EXPECT_ANY_THROW(loss.backward());
        continue;
      }
      loss.backward();
      optimizer.step();
    }
  });
}

}  // namespace
}  // namespace muster::testing
