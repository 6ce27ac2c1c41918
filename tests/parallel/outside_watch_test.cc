// A tensor that a program trains beside a fully sharded model: ranks are told when it comes apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
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

constexpr int kWatchedRanks = 3;
constexpr const char* kOutside = "expected every trained tensor of a backward to be a parameter";

using BeforeStep = std::function<void(ProcessGroup& group, const at::Tensor& scale)>;

const BeforeStep as_it_is = [](ProcessGroup&, const at::Tensor&) {
};

// Trains a model and the scale of its outputs.
template <class Model, class Optimizer>
void train_beside_a_scale(Model& model,
                          Optimizer& optimizer,
                          ProcessGroup& group,
                          const BeforeStep& before_step) {
  const at::Tensor scale = torch::ones({1}).requires_grad_();
  SGD optimizer_of_scale({scale}, 0.01);
  for (int64_t step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    optimizer_of_scale.zero_grad();
    const ShardedBatch batch = mlp_batch(step).of(group.rank(), group.size());
    sharded_loss(model->forward(batch.x) * scale, batch.y).backward();
    before_step(group, scale);
    optimizer.step();
    optimizer_of_scale.step();
  }
}

using TrainingBesideAScale =
    std::function<void(ProcessGroup& group, const BeforeStep& before_step)>;

void scale_beside_fully_sharded(ProcessGroup& group, const BeforeStep& before_step) {
  FullySharded sharded(group);
  auto model = torch::nn::ModuleHolder<LayeredMlpImpl>(sharded_mlp(), sharded);
  SGD optimizer(sharded.parameters(), 0.01);
  train_beside_a_scale(model, optimizer, group, before_step);
}

void scale_beside_sharded_gradients(ProcessGroup& group, const BeforeStep& before_step) {
  auto model = sharded_mlp();
  ShardedOptimizer<SGD> optimizer(model->parameters(), 0.01, group, {.gradients = true});
  train_beside_a_scale(model, optimizer, group, before_step);
}

std::string printed_by_ranks(const TrainingBesideAScale& train, const BeforeStep& before_step) {
  ::testing::internal::CaptureStderr();
  run_ranks(kWatchedRanks, [&](ProcessGroup& group) { train(group, before_step); });
  return ::testing::internal::GetCapturedStderr();
}

class OutsideWatchOf : public ::testing::TestWithParam<TrainingBesideAScale> {};

TEST_P(OutsideWatchOf, AScaleThatRanksTrainApartIsSaidOnce) {
  const std::string printed = printed_by_ranks(GetParam(), as_it_is);
  EXPECT_EQ(times(printed, kOutside), 1U) << printed;
  EXPECT_THAT(printed, HasSubstr("got a tensor of shape [1] outside of all"));
}

TEST_P(OutsideWatchOf, OneThatIsAveragedByHandIsNot) {
  const std::string printed =
      printed_by_ranks(GetParam(), [](ProcessGroup& group, const at::Tensor& scale) {
        group.all_reduce(scale.mutable_grad(), ReduceOp::avg);
      });
  EXPECT_THAT(printed, Not(HasSubstr(kOutside)));
}

INSTANTIATE_TEST_SUITE_P(Ways,
                         OutsideWatchOf,
                         ::testing::Values(scale_beside_fully_sharded,
                                           scale_beside_sharded_gradients));

// A mean over the ranks of a host leaves the hosts apart.
TEST(OutsideWatch, AScaleThatHostsTrainApartIsSaid) {
  ::testing::internal::CaptureStderr();
  run_ranks(4, [&](ProcessGroup& group) {
    TwoHosts hosts(group);
    FullySharded sharded(hosts.inside, {.replicate_group = hosts.across});
    auto model = torch::nn::ModuleHolder<LayeredMlpImpl>(sharded_mlp(), sharded);
    SGD optimizer(sharded.parameters(), 0.01);
    train_beside_a_scale(model, optimizer, group, [&](ProcessGroup&, const at::Tensor& scale) {
      hosts.inside.all_reduce(scale.mutable_grad(), ReduceOp::avg);
    });
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(kOutside));
}

TEST(OutsideWatch, TwoShardedModelsOfOneBackwardKnowEachOther) {
  ::testing::internal::CaptureStderr();
  run_ranks(kWatchedRanks, [&](ProcessGroup& group) {
    FullySharded first_sharded(group), second_sharded(group);
    auto first = torch::nn::ModuleHolder<LayeredMlpImpl>(sharded_mlp(), first_sharded);
    auto second = torch::nn::ModuleHolder<LayeredMlpImpl>(sharded_mlp(), second_sharded);
    SGD one(first_sharded.parameters(), 0.01);
    SGD other(second_sharded.parameters(), 0.01);
    for (int64_t step = 0; step < 6; ++step) {
      one.zero_grad();
      other.zero_grad();
      const ShardedBatch batch = mlp_batch(step).of(group.rank(), group.size());
      const at::Tensor output = first->forward(batch.x) + second->forward(batch.x);
      sharded_loss(output, batch.y).backward();
      one.step();
      other.step();
    }
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr(kOutside)));
}

}  // namespace
}  // namespace muster::testing
