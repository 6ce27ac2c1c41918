// What a training of two loaders, and one with standardised features, saves and goes on from.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>

#include "muster/checkpoint/load_weights.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/data/standard_scaler.h"
#include "muster/data/zip_loaders.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/train/step.h"
#include "tests/data/divided.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

struct ReadByRanks {
  std::mutex mutex;
  std::vector<int64_t> few, many;
};

// Goes on from the folder's newest checkpoint to step `until`, and saves there.
void train_to(int64_t until, ProcessGroup& group, const std::string& folder, ReadByRanks& all) {
  const auto loader_of = [&](const TensorDataset& data) {
    return DataLoader<TensorDataset>(
        std::make_shared<const TensorDataset>(data),
        std::make_shared<DistributedSampler>(
            shuffled(data.size()),
            SamplerOptions{.num_replicas = group.size(), .rank = group.rank()}),
        {.batch_size = 12 / group.size()});
  };
  auto few = loader_of(test::numbered(24)), many = loader_of(test::numbered(60, 1000));
  ZipLoaders both(few, many);
  torch::nn::Linear net(2, 1);
  Checkpoints checkpoints(group, {.folder = folder, .resume = true});
  checkpoints.add("model", net).add("data", both);
  checkpoints.restore();
  const torch::NoGradGuard no_grad;
  for (const auto& [one, other] : both.steps(until)) {
    const std::lock_guard lock(all.mutex);
    test::add_numbers(one.labels, &all.few);
    test::add_numbers(other.labels, &all.many);
  }
  checkpoints.save(both.step());
}

std::vector<int64_t> times(int count, const std::vector<int64_t>& numbers) {
  std::vector<int64_t> all;
  for (const int64_t number : numbers)
    all.insert(all.end(), static_cast<size_t>(count), number);
  return all;
}

// 10 steps of 12: five epochs of the one, two of the other, whoever reads them.
TEST(ZippedLoaders, CheckpointsHaveOnePlaceForAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const test::TempFolder folder;
    ReadByRanks all;
    run_ranks(ranks, [&](ProcessGroup& group) { train_to(3, group, folder.path(), all); });
    EXPECT_EQ(all.few.size(), 36);
    run_ranks(5 - ranks, [&](ProcessGroup& group) { train_to(10, group, folder.path(), all); });
    EXPECT_EQ(test::sorted(all.few), times(5, test::range(0, 24)));
    EXPECT_EQ(test::sorted(all.many), times(2, test::range(1000, 1060)));
  }
}

at::Tensor error_of(DistributedDataParallel<torch::nn::Linear>& model, const at::Tensor& features) {
  return (model(features / 1000) - 1).square().mean();
}

struct Zipped {
  int64_t size;        // of the smaller data set
  int64_t accumulate;  // batches a step, of 12 samples of it
  int64_t stop;        // after so many batches
};

// Trains eight steps, from the folder's newest checkpoint on. Returns the weights.
at::Tensor trained_weights(ProcessGroup& group, const std::string& folder, Zipped job) {
  const auto loader_of = [&](int64_t size, int64_t batch) {
    return DataLoader<TensorDataset>(
        std::make_shared<const TensorDataset>(test::numbered(size)),
        std::make_shared<DistributedSampler>(
            shuffled(size), SamplerOptions{.num_replicas = group.size(), .rank = group.rank()}),
        {.batch_size = batch / group.size() / job.accumulate, .accumulate = job.accumulate});
  };
  auto few = loader_of(job.size, 12), many = loader_of(96, 24);
  ZipLoaders both(few, many);
  torch::nn::Linear net(2, 1);
  torch::nn::init::constant_(net->weight, 0.1);
  torch::nn::init::zeros_(net->bias);
  DistributedDataParallel model(net, group);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  TrainStep step(model, optimizer);
  Checkpoints checkpoints(group, {.folder = folder, .every = 1, .resume = true});
  checkpoints.add("model", net).add("optimizer", optimizer).add("data", both);
  checkpoints.restore();
  for (const auto& [one, other] : both.steps(8)) {
    step.run(1, one.last, [&] {
      return error_of(model, one.features) * one.weight +
             error_of(model, other.features) * other.weight;
    });
    checkpoints.save_when_due(both.step());
    if (--job.stop == 0)
      break;
  }
  return net->weight.detach().clone();
}

// Steps of several batches train as steps of one large batch, and resume with the same bits
// wherever they are stopped.
TEST(ZippedLoaders, StepsOfSeveralBatchesTrainAndResume) {
  constexpr int64_t kAll = 1000;
  const auto trained = [](const std::string& folder, const Zipped& job) {
    at::Tensor weights;
    run_ranks(2, [&](ProcessGroup& group) {
      const auto mine = trained_weights(group, folder, job);
      if (group.rank() == 0)
        weights = mine;
    });
    return weights;
  };
  const test::TempFolder folder;
  const auto at_once = trained(folder / "one", {.size = 24, .accumulate = 1, .stop = kAll});
  const auto in_three = trained(folder / "three", {.size = 24, .accumulate = 3, .stop = kAll});
  EXPECT_TRUE(torch::allclose(in_three, at_once, 1e-5, 1e-6)) << in_three << at_once;
  // Epochs of five batches.
  const Zipped uneven{.size = 20, .accumulate = 3, .stop = kAll};
  const auto expected = trained(folder / "uneven", uneven);
  for (const int64_t stop : {5, 13}) {
    const auto resumed = folder / std::to_string(stop);
    trained(resumed, {.size = 20, .accumulate = 3, .stop = stop});
    EXPECT_TRUE(torch::equal(trained(resumed, uneven), expected)) << stop;
  }
}

// As the first layer of a model: the program that predicts loads it with the weights.
TEST(ZippedLoaders, AScalerIsSavedWithTheModel) {
  const test::TempFolder folder;
  const auto features = torch::rand({20, 3}) * 100 + 7;
  torch::nn::Sequential net(StandardScaler(3), torch::nn::Linear(3, 1));
  net[0]->as<StandardScaler>()->fit(features);
  std::string path;
  run_ranks(1, [&](ProcessGroup& group) {
    Checkpoints checkpoints(group, {.folder = folder.path()});
    checkpoints.add("model", net);
    path = checkpoints.save(1);
  });
  torch::nn::Sequential same(StandardScaler(3), torch::nn::Linear(3, 1));
  load_weights(*same, path);
  EXPECT_TRUE(torch::equal(same->forward(features), net->forward(features)));
}

}  // namespace
}  // namespace muster::testing
