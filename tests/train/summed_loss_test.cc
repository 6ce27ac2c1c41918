// Losses that are means over some of the samples: micro-batches and ranks have different numbers of
// labels that count, and the step is that of one process with all of them.
#include "muster/train/summed_loss.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <vector>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "muster/train/step.h"
#include "tests/support/ranks.h"
#include "tests/train/two_layers.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRowsOfBatch = 6, kRanksOfStep = 2, kMicroOfStep = 3;
constexpr int64_t kIgnored = -100;

struct Labelled {
  at::Tensor rows, labels;
  double weight = 1;
  bool last = true;
};

// Every micro-batch has another number of labels, and one of them none.
Labelled micro_batch(int64_t step, int64_t rank, int64_t micro) {
  const uint64_t seed = 100 * step + 10 * rank + micro;
  Labelled batch{.rows = fixed_data(kRowsOfBatch, seed), .labels = torch::arange(kRowsOfBatch) % 2};
  const int64_t kept = rank == 1 && micro == 0 ? 0 : 1 + (step + 2 * rank + micro) % kRowsOfBatch;
  batch.labels.slice(0, kept).fill_(kIgnored);
  batch.last = micro == kMicroOfStep - 1;
  return batch;
}

SummedLoss summed_loss_of(const at::Tensor& outputs, const at::Tensor& labels) {
  return {.sum = torch::cross_entropy_loss(outputs, labels, {}, at::Reduction::Sum, kIgnored),
          .count = (labels != kIgnored).sum()};
}

// What one process does with all rows of a step at once.
std::vector<at::Tensor> trained_alone(int64_t steps) {
  auto net = seeded_layers();
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<at::Tensor> rows, labels;
    for (int64_t i = 0; i < kRanksOfStep * kMicroOfStep; ++i) {
      const Labelled batch = micro_batch(step, i / kMicroOfStep, i % kMicroOfStep);
      rows.push_back(batch.rows);
      labels.push_back(batch.labels);
    }
    optimizer.zero_grad();
    torch::cross_entropy_loss(
        net->forward(torch::cat(rows)), torch::cat(labels), {}, at::Reduction::Mean, kIgnored)
        .backward();
    optimizer.step();
  }
  return net->parameters();
}

template <class Model>
void take_steps(TrainStep& step, Model& model, int64_t rank, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    for (int64_t micro = 0; micro < kMicroOfStep; ++micro) {
      const Labelled batch = micro_batch(i, rank, micro);
      const at::Tensor loss =
          step(batch, [&] { return summed_loss_of(model(batch.rows), batch.labels); });
      EXPECT_TRUE(loss.isfinite().item<bool>()) << "also of a batch without labels";
    }
  }
}

void expect_near(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_LT((found[i] - expected[i]).abs().max().item<double>(), 1e-9) << i;
}

TEST(SummedLoss, MicroBatchesAndRanksAreAsOneBatch) {
  constexpr int64_t kSteps = 5;
  const auto expected = trained_alone(kSteps);
  run_ranks(kRanksOfStep, [&](ProcessGroup& group) {
    auto net = seeded_layers();
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(model.parameters(), 0.5);
    TrainStep step(model, optimizer);
    take_steps(step, model, group.rank(), kSteps);
    expect_near(net->parameters(), expected);
  });
}

// Their sum may be far below 1.
TEST(SummedLoss, ClassWeightsCountByTheirSum) {
  const at::Tensor weights = torch::tensor({0.02, 0.05}, torch::kDouble);
  const Labelled first = micro_batch(3, 0, 1), second = micro_batch(4, 0, 2);
  auto alone = seeded_layers(), net = seeded_layers();
  torch::cross_entropy_loss(alone->forward(torch::cat({first.rows, second.rows})),
                            torch::cat({first.labels, second.labels}),
                            weights,
                            at::Reduction::Mean,
                            kIgnored)
      .backward();
  torch::optim::SGD plain(alone->parameters(), 0.5), optimizer(net->parameters(), 0.5);
  plain.step();
  TrainStep step(net, optimizer);
  for (const Labelled* const batch : {&first, &second}) {
    step(OneBatch{.last = batch == &second}, [&]() -> SummedLoss {
      const at::Tensor outputs = net->forward(batch->rows);
      const at::Tensor of_labels = weights.index_select(0, batch->labels.clamp_min(0));
      return {.sum = torch::cross_entropy_loss(
                  outputs, batch->labels, weights, at::Reduction::Sum, kIgnored),
              .count = of_labels.masked_fill(batch->labels == kIgnored, 0).sum()};
    });
  }
  expect_near(net->parameters(), alone->parameters());
}

TEST(SummedLoss, AShardedModelIsAsOneBatch) {
  constexpr int64_t kSteps = 3;
  const auto expected = trained_alone(kSteps);
  run_ranks(kRanksOfStep, [&](ProcessGroup& group) {
    auto net = seeded_layers();
    FullySharded sharded(group);
    auto model = sharded.wrap(net);
    torch::optim::SGD optimizer(sharded.parameters(), 0.5);
    TrainStep step(net, optimizer, {.group = group});
    take_steps(step, model, group.rank(), kSteps);
    const auto whole = sharded.whole_parameters();
    expect_near(net->parameters(), expected);
  });
}

TEST(SummedLoss, ShardedGradientsAreAsOneBatch) {
  constexpr int64_t kSteps = 3;
  const auto expected = trained_alone(kSteps);
  run_ranks(kRanksOfStep, [&](ProcessGroup& group) {
    auto net = seeded_layers();
    ShardedOptimizer<torch::optim::SGD> optimizer(
        net->parameters(), torch::optim::SGDOptions(0.5), group, {.gradients = true});
    TrainStep step(net, optimizer, {.group = group});
    take_steps(step, net, group.rank(), kSteps);
    expect_near(net->parameters(), expected);
  });
}

// A rank without samples of its own gives a batch of weight 0: others have its samples.
TEST(SummedLoss, ABatchOfWeightZeroAddsNothing) {
  const Labelled batch = micro_batch(3, 0, 1);
  auto alone = seeded_layers(), net = seeded_layers();
  torch::optim::SGD plain(alone->parameters(), 0.5), optimizer(net->parameters(), 0.5);
  const SummedLoss whole = summed_loss_of(alone->forward(batch.rows), batch.labels);
  const at::Tensor mean = whole.sum / whole.count;
  mean.backward();
  plain.step();
  TrainStep step(net, optimizer);
  const auto forward = [&] {
    return summed_loss_of(net->forward(batch.rows), batch.labels);
  };
  step(OneBatch{.last = false}, forward);
  const at::Tensor loss = step(OneBatch{.weight = 0}, forward);
  EXPECT_NEAR(loss.item<double>(), mean.item<double>(), 1e-9) << "its own mean all the same";
  expect_near(net->parameters(), alone->parameters());
}

TEST(SummedLoss, AResumedStepGoesOnInTheSameUnit) {
  auto net = seeded_layers();
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  TrainStep first(net, optimizer), second(net, optimizer);
  const auto rows = fixed_data(300);
  const auto forward = [&] {
    const at::Tensor losses = net->forward(rows).square();
    return SummedLoss{.sum = losses.sum(), .count = torch::tensor({losses.numel()})};
  };
  EXPECT_EQ(first.state().numbers.count("loss_unit"), 0);
  first(OneBatch{}, forward);
  EXPECT_EQ(first.state().numbers.at("loss_unit"), 512) << "of 600 losses";
  second.load_state(first.state());
  EXPECT_EQ(second.state().numbers.at("loss_unit"), 512);
}

// A parameter that each rank has for itself goes by the rank's own labels.
TEST(SummedLoss, IgnoredParametersGoByTheRanksOwnCount) {
  run_ranks(kRanksOfStep, [](ProcessGroup& group) {
    auto net = seeded_layers(), alone = seeded_layers();
    DistributedDataParallel model(net, group, {.ignored_parameters = {"fc2.weight"}});
    torch::optim::SGD optimizer(model.parameters(), 0.5);
    TrainStep step(model, optimizer);
    std::vector<at::Tensor> rows, labels;
    for (int64_t micro = 0; micro < kMicroOfStep; ++micro) {
      const Labelled batch = micro_batch(0, group.rank(), micro);
      step(batch, [&] { return summed_loss_of(model(batch.rows), batch.labels); });
      rows.push_back(batch.rows);
      labels.push_back(batch.labels);
    }
    torch::cross_entropy_loss(
        alone->forward(torch::cat(rows)), torch::cat(labels), {}, at::Reduction::Mean, kIgnored)
        .backward();
    const at::Tensor expected = alone->fc2->weight - 0.5 * alone->fc2->weight.grad();
    expect_near({net->fc2->weight.detach()}, {expected.detach()});
  });
}

TEST(SummedLoss, WhatDoesNotFitIsRefused) {
  run_ranks(1, [](ProcessGroup& group) {
    auto net = seeded_layers();
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(model.parameters(), 0.5);
    TrainStep step(model, optimizer);
    const Labelled batch = micro_batch(0, 0, 0);
    const auto outputs = [&] {
      return model(batch.rows);
    };
    const auto mean = [&] {
      return torch::cross_entropy_loss(outputs(), batch.labels, {}, at::Reduction::Mean, kIgnored);
    };
    step(batch, [&] { return summed_loss_of(outputs(), batch.labels); });
    EXPECT_THAT([&] { step(batch, mean); },
                ::testing::ThrowsMessage<Error>(HasSubstr("losses of one kind")));
    step(batch, mean);  // the next batch begins a new step
    EXPECT_THAT([&] { step(batch, [&] { return summed_loss_of(outputs(), batch.labels); }); },
                ::testing::ThrowsMessage<Error>(HasSubstr("losses of one kind")));
    EXPECT_THAT(
        [&] { step(batch, [&] { return SummedLoss{.sum = outputs(), .count = batch.labels}; }); },
        ::testing::ThrowsMessage<Error>(
            HasSubstr("a sum of one element, got one of shape [6, 2]")));
    EXPECT_THAT([&] { step(batch, [&] { return SummedLoss{.sum = mean(), .count = {}}; }); },
                ::testing::ThrowsMessage<Error>(HasSubstr("a count of one element, got none")));
  });
}

// Losses without a sum: the other rank waits for counts until this one has left.
TEST(SummedLoss, ARankWhoseLossHasAnotherShapeIsNamed) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel model(seeded_layers(), group);
    torch::optim::SGD optimizer(model.parameters(), 0.5);
    TrainStep step(model, optimizer);
    const Labelled batch = micro_batch(0, 0, 0);
    step(batch, [&] {
      SummedLoss loss = summed_loss_of(model(batch.rows), batch.labels);
      if (group.rank() == 1)
        loss.sum = loss.sum.expand({2});
      return loss;
    });
  });
  EXPECT_THAT(message_of(failures[1]),
              HasSubstr("a sum of one element, got one of shape [2] (rank 1, step 1); return"));
  EXPECT_NE(message_of(failures[0]), "");
}

}  // namespace
}  // namespace muster::testing
