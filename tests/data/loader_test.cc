#include "muster/data/loader.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include "muster/base/error.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorDataset counted(int64_t size) {
  const auto labels = torch::arange(size, torch::kInt64);
  return {labels.to(torch::kFloat32).unsqueeze(1) * 10, labels};
}

std::vector<int64_t> labels_of(DataLoader<TensorDataset>& loader) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> labels;
  for (const auto& batch : loader)
    for (int64_t i = 0; i < batch.size(); ++i)
      labels.push_back(batch.labels[i].item<int64_t>());
  return labels;
}

std::vector<int64_t> sizes_of(DataLoader<TensorDataset>& loader) {
  std::vector<int64_t> sizes;
  for (const auto& batch : loader)
    sizes.push_back(batch.size());
  return sizes;
}

// A range over a loader that is gone at the loop's beginning does not compile.
template <class Loader>
concept GivesSteps = requires(Loader&& loader) { std::forward<Loader>(loader).steps(1); } ||
                     requires(Loader&& loader) { std::forward<Loader>(loader).begin(); };
static_assert(GivesSteps<DataLoader<TensorDataset>&>);
static_assert(!GivesSteps<DataLoader<TensorDataset>>);

TEST(DataLoader, GivesEverySampleInOrder) {
  DataLoader loader(counted(7), {.batch_size = 3});
  EXPECT_EQ(loader.num_batches(), 3);
  EXPECT_THAT(sizes_of(loader), ElementsAre(3, 3, 1));
  EXPECT_THAT(labels_of(loader), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  for (const auto& batch : loader)
    EXPECT_TRUE(torch::equal(batch.features.squeeze(1), batch.labels.to(torch::kFloat32) * 10));
}

std::vector<int64_t> numbers_in(const torch::Tensor& labels) {
  return {labels.const_data_ptr<int64_t>(), labels.const_data_ptr<int64_t>() + labels.numel()};
}

TEST(DataLoader, ABatchKnowsWhichSamplesItHas) {
  for (const int workers : {0, 3}) {
    DistributedSampler sampler(11, {.num_replicas = 2, .rank = 1, .seed = 4});
    DataLoader loader(counted(11), sampler, {.batch_size = 3, .workers = workers});
    int64_t samples = 0;
    for (const auto& batch : loader.steps(5)) {  // over two epochs
      EXPECT_EQ(batch.sample_indices, numbers_in(batch.labels));
      samples += batch.size();
    }
    EXPECT_EQ(samples, 6 + 6 + 3);
  }
}

struct SomeWithoutAFile {
  using Example = LabelledExample;
  int64_t size() const { return 8; }
  Example get(int64_t index, Generator&) const {
    if (index == 2 || index > 5)
      throw std::runtime_error("no file");
    return {torch::zeros({1}), torch::tensor(index)};
  }
};

TEST(DataLoader, SamplesThatCannotBeReadAreNamedAndNotInABatch) {
  DataLoader loader(SomeWithoutAFile(), {.batch_size = 2, .skip_bad = true});
  std::vector<int64_t> read, standing_in;
  {
    const torch::NoGradGuard no_grad;
    for (const auto& batch : loader)
      read.insert(read.end(), batch.sample_indices.begin(), batch.sample_indices.end());
  }
  EXPECT_THAT(read, ElementsAre(0, 1, 3, 4, 5));
  EXPECT_THAT(loader.bad_samples(), ElementsAre(2, 6, 7));
  for (const auto& batch : loader)  // in training others stand in for a batch without any
    standing_in = batch.sample_indices;
  EXPECT_THAT(standing_in, ElementsAre(0, 1));
}

TEST(DataLoader, ABatchApartFromItsOrder) {
  DataLoader loader(counted(7), {.batch_size = 3});
  auto epoch = loader.begin();
  const auto batch = loader.batch_of({6, 0});
  EXPECT_EQ(numbers_in(batch.labels), batch.sample_indices);
  EXPECT_THAT(batch.sample_indices, ElementsAre(6, 0));
  EXPECT_EQ(loader.stats().batches, 1);
  ++epoch;
  EXPECT_THAT(epoch->sample_indices, ElementsAre(3, 4, 5));
  EXPECT_THAT(message_of([] { DataLoader(SomeWithoutAFile(), {}).batch_of({2}); }),
              HasSubstr("sample 2: no file"));
}

TEST(DataLoader, DropsAnIncompleteBatch) {
  DataLoader loader(counted(7), {.batch_size = 3, .drop_last = true});
  EXPECT_EQ(loader.num_batches(), 2);
  EXPECT_THAT(sizes_of(loader), ElementsAre(3, 3));
  DataLoader none(counted(2), {.batch_size = 3, .drop_last = true});
  EXPECT_EQ(none.num_batches(), 0);
  EXPECT_THAT(
      message_of([&] { sizes_of(none); }),
      HasSubstr("expected an epoch with at least 1 batch of this rank, got none of 2 samples"))
      << "a training of no steps";
  const torch::NoGradGuard no_grad;
  EXPECT_THAT(sizes_of(none), ElementsAre());
}

TEST(DataLoader, FollowsTheSamplerThroughEpochs) {
  DistributedSampler sampler(10, {.num_replicas = 2, .rank = 1, .seed = 5});
  DistributedSampler same(10, {.num_replicas = 2, .rank = 1, .seed = 5});
  DataLoader loader(counted(10), sampler, {.batch_size = 2});
  EXPECT_EQ(loader.num_batches(), 3);
  for (const int epoch : {0, 1}) {
    sampler.set_epoch(epoch);
    same.set_epoch(epoch);
    EXPECT_EQ(labels_of(loader), same.indices());
  }
}

struct Growing : Dataset<at::Tensor> {
  explicit Growing(std::shared_ptr<const int64_t> now) : size_now(std::move(now)) {}
  int64_t size() const override { return *size_now; }
  at::Tensor get(int64_t index, Generator& /*rng*/) const override { return torch::tensor(index); }
  std::shared_ptr<const int64_t> size_now;
};

// The order is made for the first size: samples that came later were never read.
TEST(DataLoader, ADataSetOfAnotherSizeIsRefusedInTheNextEpoch) {
  const auto size_now = std::make_shared<int64_t>(4);
  DataLoader loader(Growing(size_now), {.batch_size = 2});
  const auto take_steps = [&](int64_t until, int64_t size_then) {
    for (const auto& batch : loader.steps(until)) {
      (void)static_cast<double>(batch.weight);
      *size_now = size_then;
    }
  };
  take_steps(2, 6);  // all of the first epoch
  EXPECT_THAT(message_of([&] { take_steps(4, 6); }),
              AllOf(HasSubstr("expected a data set of 4 samples, as when the loader was made"),
                    HasSubstr("got 6; make another loader")));
  *size_now = 4;
  EXPECT_THAT(message_of([&] { take_steps(8, 3); }), HasSubstr("got 3;")) << "within steps()";
}

struct Shrinking : Dataset<at::Tensor> {
  explicit Shrinking(std::shared_ptr<std::atomic<int>> count) : reads(std::move(count)) {}
  int64_t size() const override { return *reads < 4 ? 4 : 2; }
  at::Tensor get(int64_t index, Generator& /*rng*/) const override {
    ++*reads;
    return torch::tensor(index);
  }
  std::shared_ptr<std::atomic<int>> reads;
};

// It would read samples that are not there any more.
TEST(DataLoader, AWorkerReadsNothingOfTheNextEpochOfAShrunkenDataSet) {
  const auto reads = std::make_shared<std::atomic<int>>(0);
  DataLoader loader(Shrinking(reads), {.batch_size = 1, .workers = 1, .ahead = 8});
  EXPECT_THAT(message_of([&] {
                for (const auto& batch : loader.steps(8))
                  (void)static_cast<double>(batch.weight);
              }),
              HasSubstr("expected a data set of 4 samples, as when the loader was made, got 2;"));
  EXPECT_EQ(*reads, 4);
}

TEST(DataLoader, ARestoreInMidEpochNamesTheSizesThatDiffer) {
  DataLoader first(counted(8), {.batch_size = 2}), other(counted(6), {.batch_size = 2});
  for (const auto& batch : first.steps(2))
    (void)static_cast<double>(batch.weight);
  EXPECT_EQ(message_of([&] { other.restore(first.position()); }),
            "data loader: expected the data set of 8 samples, of which epoch 0 has used 4, got one "
            "of 6; give that data set, or begin an epoch anew");
}

TEST(DataLoader, StartsAgainAfterAnEarlyBreak) {
  DataLoader loader(counted(6), {.batch_size = 2});
  for (const auto& batch : loader)
    if (batch.labels[0].item<int64_t>() == 2)
      break;
  EXPECT_THAT(labels_of(loader), ElementsAre(0, 1, 2, 3, 4, 5));
}

// As by a training that saves when it fails: it is to go on in the epoch.
TEST(DataLoader, AnExceptionDoesNotLeaveTheEpoch) {
  DataLoader loader(counted(6), {.batch_size = 2});
  try {
    for (const auto& batch : loader)
      if (batch.labels[0].item<int64_t>() == 2)
        throw std::runtime_error("out of memory");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(loader.position().epoch, 0);
    EXPECT_EQ(loader.position().consumed, 4);
  }
  for ([[maybe_unused]] const auto& batch : loader)
    break;
  EXPECT_EQ(loader.position().epoch, 2);
  EXPECT_EQ(loader.position().consumed, 0);
}

TEST(DataLoader, NestedIterationsAreIndependent) {
  DataLoader loader(counted(4), {.batch_size = 2});
  int batches = 0;
  for ([[maybe_unused]] const auto& outer : loader)
    for ([[maybe_unused]] const auto& inner : loader)
      ++batches;
  EXPECT_EQ(batches, 4);
}

TEST(DataLoader, SetEpochKeepsThePlaceInTheEpochThatGoesOn) {
  DataLoader loader(counted(6), {.batch_size = 2});
  loader.restore({.epoch = 1, .consumed = 4, .dataset_size = 6, .step = 5});
  loader.set_epoch(1);
  EXPECT_EQ(sizes_of(loader).size(), 1U);
  loader.set_epoch(2);
  EXPECT_EQ(sizes_of(loader).size(), 3U);
}

TEST(DataLoader, AHugeBatchIsTheWholeSet) {
  DataLoader loader(counted(5), {.batch_size = std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(loader.num_batches(), 1);
  EXPECT_THAT(sizes_of(loader), ElementsAre(5));
}

TEST(DataLoader, BatchesOutliveTheLoader) {
  std::vector<DataLoader<TensorDataset>::Batch> kept;
  {
    DataLoader loader(counted(4), {.batch_size = 2});
    for (auto&& batch : loader)
      kept.push_back(batch);
  }
  EXPECT_TRUE(torch::equal(kept[1].labels, torch::tensor({2, 3})));
}

TEST(DataLoader, WeightsOfAStepSumToOneAndTheLastStepIsFlushed) {
  for (const int64_t samples : {1, 7, 11, 12, 64}) {
    for (const int64_t size : {1, 2, 5, 64}) {
      for (const int64_t accumulate :
           {int64_t{1}, int64_t{2}, int64_t{3}, std::numeric_limits<int64_t>::max()}) {
        DataLoader loader(counted(samples), {.batch_size = size, .accumulate = accumulate});
        double sum = 0;
        for (const auto& batch : loader) {
          sum += batch.weight;
          if (!batch.last)
            continue;
          EXPECT_NEAR(sum, 1, 1e-12);
          sum = 0;
        }
        EXPECT_EQ(sum, 0) << "the epoch's last batch must end a step";
      }
    }
  }
}

TEST(DataLoader, TakesTheShareOfItsRank) {
  DistributedSampler sampler(10,
                             {.num_replicas = 2, .rank = 1, .shuffle = false, .shares = {1, 3}});
  DataLoader loader(counted(10), sampler, {.batch_size = 3});
  EXPECT_THAT(labels_of(loader), ElementsAre(1, 2, 3, 5, 6, 7, 9));
  std::vector<double> weights;
  for (const auto& batch : loader)
    weights.push_back(batch.weight);
  EXPECT_THAT(weights, ElementsAre(1.5, 1.5, 1.0));
  EXPECT_THAT(message_of([&] { DataLoader(counted(10), sampler, {.batch_size = 2}); }),
              HasSubstr("expected batch_size 3, this rank's share of the global batch of 4"));
}

TEST(DataLoader, RefusesBadArguments) {
  EXPECT_THAT(message_of([] { DataLoader(counted(4), {.accumulate = 0}); }),
              HasSubstr("accumulate 0"));
  EXPECT_THAT(message_of([] { DataLoader(counted(4), {.batch_size = 0}); }),
              HasSubstr("at least 1, got 0"));
  DistributedSampler sampler(5, {});
  EXPECT_THAT(message_of([&] { DataLoader(counted(4), sampler, {}); }),
              HasSubstr("for 4 samples, got one for 5"));
  DataLoader loader(counted(4), {});
}

TEST(DataLoaderOnAGpu, PutsBatchesThere) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "no GPU";
  for (const bool pin : {true, false}) {
    DataLoader loader(
        counted(7), {.batch_size = 3, .device = torch::Device(torch::kCUDA, 0), .pin_memory = pin});
    std::vector<int64_t> seen;
    for (const auto& batch : loader) {
      EXPECT_TRUE(batch.features.is_cuda());
      EXPECT_TRUE(torch::equal(batch.features.squeeze(1).cpu(),
                               batch.labels.cpu().to(torch::kFloat32) * 10));
      seen.push_back(batch.size());
    }
    EXPECT_THAT(seen, ElementsAre(3, 3, 1));
  }
}

}  // namespace
}  // namespace muster
