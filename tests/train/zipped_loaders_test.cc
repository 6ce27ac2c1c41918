// What a training of two loaders, and one with standardised features, saves and goes on from.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>

#include "muster/checkpoint/load_weights.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/data/standard_scaler.h"
#include "muster/data/zip_loaders.h"
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
