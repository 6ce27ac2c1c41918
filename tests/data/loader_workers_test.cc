// Loaders over data sets that compute their examples: workers, errors, epochs, resuming.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <set>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/uneven_inputs.h"
#include "muster/data/own_loaders.h"
#include "muster/data/prefetch.h"
#include "tests/data/files.h"
#include "tests/data/numbers.h"

namespace muster {
namespace {

using test::message_of;
using test::Noted;
using test::Numbers;
using test::numbers;
using test::run_through;
using test::sampler_of;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

size_t threads_of_this_process() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST(LoaderWorkers, BatchesAreTheSameWhateverTheWorkers) {
  std::vector<std::vector<std::pair<int64_t, double>>> seen;
  for (const int workers : {0, 1, 2, 5}) {
    DataLoader loader(
        numbers(103), sampler_of(103, {.seed = 4}), {.batch_size = 7, .workers = workers});
    seen.push_back(run_through(loader));
    EXPECT_EQ(loader.stats().batches, 15);
    EXPECT_EQ(loader.stats().samples, 103);
  }
  for (const auto& other : seen)
    EXPECT_EQ(other, seen.front());
  EXPECT_EQ(seen.front().size(), 103);
}

TEST(LoaderWorkers, AreOneOnAGpuAndNoneOnTheCpuByDefault) {
  const torch::Device gpu(torch::kCUDA, 0);
  EXPECT_EQ(num_workers({}, torch::kCPU), 0);
  EXPECT_EQ(num_workers({}, gpu), 1);
  EXPECT_EQ(num_workers(0, gpu), 0);
  EXPECT_EQ(num_workers(4, gpu), 4);
  EXPECT_EQ(num_workers(4, torch::kCPU), 4);
  EXPECT_THAT(message_of([] { DataLoader(numbers(4), {.workers = -1}); }),
              HasSubstr("expected workers of at least 0, got -1"));
}

TEST(LoaderWorkers, ASamplesChanceIsItsOwnOnEveryNumberOfRanks) {
  std::map<int64_t, double> alone;
  DataLoader one(numbers(20), sampler_of(20), {.batch_size = 20});
  for (const auto& [index, noise] : run_through(one))
    alone[index] = noise;
  for (int rank = 0; rank < 2; ++rank) {
    DataLoader part(numbers(20),
                    sampler_of(20, {.num_replicas = 2, .rank = rank}),
                    {.batch_size = 3, .workers = 2});
    for (const auto& [index, noise] : run_through(part))
      EXPECT_EQ(alone[index], noise);
  }
  one.set_epoch(1);
  for (const auto& [index, noise] : run_through(one))
    EXPECT_NE(alone[index], noise);
}

TEST(LoaderWorkers, NoWorkerSurvivesABreakOrAnException) {
  const size_t before = threads_of_this_process();
  DataLoader loader(numbers(1000), sampler_of(1000), {.batch_size = 2, .workers = 3});
  for ([[maybe_unused]] const auto& batch : loader) {
    EXPECT_EQ(threads_of_this_process(), before + 3);
    break;
  }
  EXPECT_EQ(threads_of_this_process(), before);
  EXPECT_THROW(
      for ([[maybe_unused]] const auto& batch : loader) throw std::runtime_error("the user's"),
      std::runtime_error);
  EXPECT_EQ(threads_of_this_process(), before);
}

TEST(LoaderWorkers, NotMoreIsMadeAheadThanAskedFor) {
  struct Counting : Numbers {
    using Numbers::Numbers;
    Noted get(int64_t index, Generator& rng) const override {
      ++*asked;
      return Numbers::get(index, rng);
    }
    std::shared_ptr<std::atomic<int>> asked = std::make_shared<std::atomic<int>>(0);
  };
  const Counting counting(1000);
  DataLoader<Counting> loader(counting, {.workers = 2, .ahead = 5});
  auto it = loader.begin();
  while (*counting.asked < 6)
    std::this_thread::yield();  // one handed out, five ahead
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(*counting.asked, 6);
}

TEST(LoaderWorkers, AnExceptionNamesTheSampleAndTheWorkerAndKeepsItsCause) {
  for (const int workers : {0, 2}) {
    DataLoader loader(numbers(20, {13}), {.batch_size = 4, .workers = workers});
    int batches = 0;
    try {
      for ([[maybe_unused]] const auto& batch : loader)
        ++batches;
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_THAT(
          error.what(),
          HasSubstr(workers == 0 ? "data loader: sample 13: cut short" : "sample 13 (worker "));
      EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
    }
    EXPECT_EQ(batches, 3) << "those before come first";
  }
}

TEST(LoaderWorkers, BadSamplesAreLeftOutAndCounted) {
  DataLoader loader(numbers(20, {3, 13}), {.batch_size = 4, .workers = 2, .skip_bad = true});
  testing::internal::CaptureStderr();
  const auto seen = run_through(loader);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("2 samples could not be read and were left out; the first: sample "));
  EXPECT_EQ(seen.size(), 18);
  EXPECT_EQ(loader.stats().bad_samples, 2);
}

// 33 samples in batches of 16 a rank: the last batch of rank 0 is sample 32 alone.
TEST(LoaderWorkers, ABatchOfBadSamplesAloneIsReplacedByTheNextOnes) {
  for (const int workers : {0, 2}) {
    DataLoader loader(numbers(33, {0, 32}),
                      sampler_of(33, {.num_replicas = 2, .shuffle = false}),
                      {.batch_size = 16, .workers = workers, .skip_bad = true});
    std::vector<int64_t> samples, rows;
    for (const auto& batch : loader.steps(4)) {
      EXPECT_EQ(batch.weight, 1);
      samples.push_back(batch.samples);
      rows.push_back(batch.index.size(0));
    }
    EXPECT_THAT(samples, ElementsAre(15, 1, 15, 1));
    EXPECT_THAT(rows, ElementsAre(15, 1, 15, 1));
    EXPECT_EQ(loader.stats().bad_samples, 4);
    EXPECT_EQ(loader.stats().samples, 30) << "what stands in is not counted";
    EXPECT_EQ(run_through(loader).size(), 15) << "nor does evaluation see it";
  }
  DataLoader hopeless(numbers(4, {0, 1, 2, 3}), {.batch_size = 2, .skip_bad = true});
  EXPECT_THAT(
      message_of([&] { run_through(hopeless); }),
      HasSubstr("batch of samples 0 … 1: expected a sample that can be read, got none of 4"));
}

// LibTorch's errors carry the frames of its stack.
TEST(LoaderWorkers, AnErrorOfLibTorchIsOneLine) {
  struct Shapeless : Dataset<torch::Tensor> {
    int64_t size() const override { return 2; }
    torch::Tensor get(int64_t, Generator&) const override {
      return torch::ones({2, 3}).mm(torch::ones({2, 3}));
    }
  };
  DataLoader loader(Shapeless(), {.workers = 1});
  const std::string message = message_of([&] { loader.begin(); });
  EXPECT_THAT(message,
              AllOf(HasSubstr("sample 0 (worker 0): "),
                    HasSubstr("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)")));
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  DataLoader skips(Shapeless(), {.skip_bad = true});
  EXPECT_EQ(message_of([&] { skips.begin(); }).find('\n'), std::string::npos);
}

// Stands for what a library destroys at the end of the process, and its workers compute with.
struct Tables {
  ~Tables() {
    are_there = false;
    if (!are_used)
      return;
    std::this_thread::sleep_for(
        std::chrono::milliseconds(200));  // a worker that is at them notices
  }
  std::atomic<bool> are_there = true;
  std::atomic<bool> are_used = false;
};
Tables g_tables;

struct Computing : Dataset<torch::Tensor> {
  int64_t size() const override { return 1000; }
  torch::Tensor get(int64_t index, Generator&) const override {
    g_tables.are_used = true;
    for (int i = 0; i < (index == 0 ? 0 : 30); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!g_tables.are_there)
        std::abort();
    }
    return torch::zeros({1});
  }
};

TEST(LoaderWorkersDeathTest, WorkersEndBeforeWhatTheyComputeWith) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave = [](DataLoaderOptions options) {
    DataLoader loader(Computing(), options);
    for (const auto& batch : loader)
      std::exit(batch.size() == 1 ? 0 : 1);
  };
  EXPECT_EXIT(leave({.workers = 4}), ::testing::ExitedWithCode(0), "");
  const auto leave_late = [] {
    DataLoader loader(Computing(), {.workers = 4, .timeout = std::chrono::milliseconds(1)});
    try {
      for (const auto& batch : loader)
        (void)batch;
    } catch (const Error&) {  // the workers are left behind
      std::exit(0);
    }
  };
  EXPECT_EXIT(leave_late(), ::testing::ExitedWithCode(0), "");
}

TEST(LoaderWorkers, OutOfMemoryIsSaid) {
  struct Greedy : Dataset<torch::Tensor> {
    int64_t size() const override { return 1; }
    torch::Tensor get(int64_t, Generator&) const override { throw std::bad_alloc(); }
  };
  DataLoader loader(Greedy(), {.workers = 1});
  EXPECT_THAT(message_of([&] { loader.begin(); }), HasSubstr("sample 0 (worker 0): out of memory"));
}

// No batch ever comes. On a busy machine the worker is not there yet when the time is over.
TEST(LoaderWorkers, ABatchThatDoesNotComeIsNamed) {
  struct Hanging : Dataset<torch::Tensor> {
    explicit Hanging(std::shared_future<void> end) : end_(std::move(end)) {}
    int64_t size() const override { return 4; }
    torch::Tensor get(int64_t index, Generator&) const override {
      end_.wait();
      return torch::tensor(index);
    }
    std::shared_future<void> end_;
  };
  std::promise<void> end;
  DataLoader loader(Hanging(end.get_future().share()),
                    {.workers = 1, .timeout = std::chrono::milliseconds(50)});
  EXPECT_THAT(message_of([&] { loader.begin(); }),
              AllOf(HasSubstr("expected batch 0 within 50 ms"),
                    AnyOf(HasSubstr("sample 0 (worker 0)"), HasSubstr("at no sample"))));
  end.set_value();
}

// The first batch is there, and the worker hangs at the second, before anybody waits for either.
TEST(LoaderWorkers, AWorkerThatHangsIsNamed) {
  std::promise<void> hangs, end;
  const auto make = [&hangs, ended = end.get_future().share()](int64_t number, WorkerPlace& place) {
    place.sample = 10 * number;
    if (number == 1) {
      hangs.set_value();
      ended.wait();
    }
    return std::make_shared<int64_t>(number);
  };
  Prefetch prefetch(make, 0, 4, {.workers = 1, .timeout = std::chrono::milliseconds(50)});
  hangs.get_future().wait();
  EXPECT_EQ(*std::static_pointer_cast<int64_t>(prefetch.next()), 0);
  EXPECT_THAT(message_of([&] { prefetch.next(); }),
              AllOf(HasSubstr("expected batch 1 within 50 ms"), HasSubstr("sample 10 (worker 0)")));
  end.set_value();
}

TEST(LoaderWorkers, ShapesThatDifferAreSaidWithTheSamples) {
  struct Uneven : Dataset<torch::Tensor> {
    int64_t size() const override { return 4; }
    torch::Tensor get(int64_t index, Generator&) const override { return torch::zeros({index}); }
  };
  DataLoader loader(Uneven(), {.batch_size = 4, .workers = 1});
  EXPECT_THAT(message_of([&] { loader.begin(); }),
              AllOf(HasSubstr("batch of samples 0 … 3 (worker 0): collate:"),
                    HasSubstr("Float [1] in example 1")));
}

TEST(LoaderSteps, GoOverEpochsAndResumeWhereTheyWere) {
  const auto make = [](int ranks, int rank, int workers) {
    return DataLoader(numbers(50),
                      sampler_of(50, {.num_replicas = ranks, .rank = rank, .seed = 8}),
                      {.batch_size = 2, .accumulate = 2, .workers = workers});
  };
  auto whole = make(2, 1, 0);
  const auto all = run_through(whole.steps(20));
  EXPECT_EQ(whole.position().step, 20);
  for (const int64_t stop : {1, 6, 7, 8, 19}) {
    auto first = make(2, 1, 2);
    auto seen = run_through(first.steps(stop));
    auto second = make(2, 1, 1);
    second.restore(first.position());
    for (const auto& sample : run_through(second.steps(20)))
      seen.push_back(sample);
    ASSERT_EQ(seen, all) << stop;
    EXPECT_EQ(second.position(), whole.position());
  }
}

TEST(LoaderSteps, AnEpochGoesOnWithOtherRanksWithoutASampleLostOrRepeated) {
  std::multiset<int64_t> used;
  DataPosition position;
  for (const int ranks : {4, 3, 1}) {
    DataPosition after;
    for (int rank = 0; rank < ranks; ++rank) {
      DataLoader loader(numbers(100),
                        sampler_of(100, {.num_replicas = ranks, .rank = rank, .pad = false}),
                        {.batch_size = 3});
      loader.restore(position);
      const auto seen =
          ranks == 1 ? run_through(loader) : run_through(loader.steps(position.step + 2));
      for (const auto& [index, noise] : seen)
        used.insert(index);
      after = loader.position();
    }
    position = after;
  }
  EXPECT_EQ(used.size(), 100);
  EXPECT_EQ(std::set<int64_t>(used.begin(), used.end()).size(), 100);
}

// An epoch of 10 batches of which a loop takes 4: what comes next is the same with a stop between
// and without.
TEST(LoaderSteps, AnEpochThatWasLeftIsOverAfterAResumeToo) {
  const auto some = [](DataLoader<Numbers>& loader) {
    std::vector<std::pair<int64_t, double>> seen;
    const torch::NoGradGuard no_grad;
    for (const auto& batch : loader) {
      seen.emplace_back(batch.index[0].item<int64_t>(), batch.noise[0].item<double>());
      if (seen.size() == 4)
        break;
    }
    return seen;
  };
  for (const int workers : {0, 2}) {
    for (const int64_t accumulate : {1, 3}) {
      const DataLoaderOptions options{
          .batch_size = 2, .accumulate = accumulate, .workers = workers};
      DataLoader whole(numbers(20), sampler_of(20), options);
      some(whole);
      EXPECT_EQ(whole.position().epoch, 1);
      EXPECT_EQ(whole.position().consumed, 0);
      DataLoader resumed(numbers(20), sampler_of(20), options);
      resumed.restore(whole.position());
      EXPECT_EQ(some(resumed), some(whole));
      EXPECT_EQ(resumed.position(), whole.position());
    }
  }
}

TEST(LoaderSteps, ALoopOverAnEpochGoesOnWhereStepsEnded) {
  DataLoader whole(numbers(20), sampler_of(20), {.batch_size = 2}),
      resumed(numbers(20), sampler_of(20), {.batch_size = 2});
  run_through(whole.steps(4));
  EXPECT_EQ(whole.epoch(), 0);
  resumed.restore(whole.position());
  EXPECT_EQ(resumed.epoch(), 0);
  const auto rest = run_through(whole);
  EXPECT_EQ(rest.size(), 12);
  EXPECT_EQ(run_through(resumed), rest);
  EXPECT_EQ(run_through(whole).size(), 20);
}

// A position that was saved within the loop stays one within the epoch, and restore() within a loop
// holds.
TEST(LoaderSteps, APlaceWithinALoopIsWithinTheEpoch) {
  DataLoader loader(numbers(20), sampler_of(20), {.batch_size = 2});
  DataPosition within;
  const torch::NoGradGuard no_grad;
  for ([[maybe_unused]] const auto& batch : loader) {
    within = loader.position();
    break;
  }
  EXPECT_EQ(within.consumed, 2);
  for ([[maybe_unused]] const auto& batch : loader) {
    loader.restore(within);
    break;
  }
  EXPECT_EQ(loader.position(), within);
  EXPECT_EQ(run_through(loader).size(), 18);
}

// The job is to go on where it was stopped.
TEST(LoaderSteps, AnEpochThatIsLeftSinceTheJobStopsGoesOn) {
  const OwnLoaders rules([](const SamplerIdentity&) {});
  DataLoader loader(numbers(20), sampler_of(20), {.batch_size = 2});
  const torch::NoGradGuard no_grad;
  for ([[maybe_unused]] const auto& batch : loader) {
    OwnLoaders::stop_job();
    break;
  }
  EXPECT_EQ(loader.position().epoch, 0);
  EXPECT_EQ(loader.position().consumed, 2);
}

// Rank 0 has 4 samples of 7, rank 1 has 3: rank 1 would be in an epoch of its own.
TEST(LoaderSteps, TrainingOnUnequalNumbersOfBatchesIsAnErrorOnEveryRank) {
  const auto loader_of = [](int rank) {
    return DataLoader(
        numbers(7), sampler_of(7, {.num_replicas = 2, .rank = rank, .pad = false}), {});
  };
  for (const int rank : {0, 1}) {
    auto loader = loader_of(rank);
    const auto train = [&](auto&& batches) {
      for (const auto& batch : batches)
        (void)static_cast<double>(batch.weight);
    };
    const auto refusal =
        HasSubstr("as many batches on every rank, got 4 on some and 3 on others in epoch 0");
    EXPECT_THAT(message_of([&] { train(loader.steps(6)); }), refusal);
    EXPECT_THAT(message_of([&] { train(loader.steps(4)); }), refusal);
    EXPECT_THAT(message_of([&] { train(loader); }), refusal);
    auto within = loader_of(rank);
    EXPECT_NO_THROW(train(within.steps(3))) << "all ranks have that many";
    auto joined = loader_of(rank);
    const UnevenInputs allowed;
    EXPECT_NO_THROW(train(joined));
  }
  for (const int rank : {0, 1})
    EXPECT_EQ(run_through(loader_of(rank)).size(), 4 - rank) << "evaluation";
}

TEST(LoaderSteps, InPartsAreTheSame) {
  DataLoader whole(numbers(30), sampler_of(30), {.batch_size = 2, .accumulate = 2});
  DataLoader parts(numbers(30), sampler_of(30), {.batch_size = 2, .accumulate = 2});
  const auto all = run_through(whole.steps(19));
  std::vector<std::pair<int64_t, double>> seen;
  for (const int64_t until : {3, 3, 8, 19})
    for (const auto& sample : run_through(parts.steps(until)))
      seen.push_back(sample);
  EXPECT_EQ(seen, all);
}

TEST(LoaderSteps, EpochsCountThemselves) {
  DataLoader loader(numbers(6), sampler_of(6), {.batch_size = 2});
  std::set<std::vector<std::pair<int64_t, double>>> epochs;
  while (loader.epoch() < 4)
    epochs.insert(run_through(loader));
  EXPECT_EQ(epochs.size(), 4);
  for ([[maybe_unused]] const auto& batch : loader)
    break;
  EXPECT_EQ(loader.epoch(), 5);
  loader.restore({.epoch = 2, .consumed = 2, .dataset_size = 6, .step = 7});
  EXPECT_EQ(loader.epoch(), 2);
  EXPECT_EQ(run_through(loader).size(), 4);
}

TEST(LoaderSteps, AnEpochWithoutBatchesIsAnError) {
  DataLoader loader(numbers(3), sampler_of(3), {.batch_size = 4, .drop_last = true});
  EXPECT_THAT(message_of([&] { run_through(loader.steps(2)); }),
              HasSubstr("expected an epoch with at least 1 batch"));
}

TEST(LoaderSteps, ARestOfAnEpochWithoutBatchesIsPassedOverOnce) {
  DataLoader some(numbers(10), sampler_of(10), {.batch_size = 4, .drop_last = true});
  some.restore({.epoch = 0, .consumed = 8, .dataset_size = 10, .step = 2});
  EXPECT_EQ(run_through(some.steps(4)).size(), 8);
  DataLoader none(
      numbers(10), sampler_of(10, {.num_replicas = 4}), {.batch_size = 4, .drop_last = true});
  none.restore({.epoch = 0, .consumed = 4, .dataset_size = 10, .step = 1});
  EXPECT_THAT(message_of([&] { run_through(none.steps(3)); }),
              HasSubstr("expected an epoch with at least 1 batch"));
}

TEST(LoaderSteps, APlaceInAnotherOrderIsRefused) {
  DataLoader one(numbers(10), sampler_of(10, {.seed = 1}), {.batch_size = 2});
  run_through(one.steps(2));
  DataLoader other(numbers(10), sampler_of(10, {.seed = 2}), {.batch_size = 2});
  EXPECT_THAT(message_of([&] { other.restore(one.position()); }),
              HasSubstr("the order and the seed with which epoch 0 began"));
  run_through(one.steps(5));
  other.restore(one.position());
  EXPECT_EQ(other.epoch(), 1) << "between epochs another order is fine";
}

TEST(LoaderSteps, AWholeEpochIsWholeWhereverTrainingIs) {
  DataLoader loader(numbers(20), sampler_of(20), {.batch_size = 2});
  loader.restore({.epoch = 3, .consumed = 14, .dataset_size = 20, .step = 37});
  EXPECT_EQ(loader.num_batches(), 10);
  EXPECT_EQ(loader.num_samples(), 20);
  EXPECT_EQ(run_through(loader).size(), 6);
}

TEST(LoaderSteps, EpochsCountThemselvesWithASamplerOfOnesOwnToo) {
  DistributedSampler sampler(6, {});
  DataLoader loader(Numbers(6), sampler, {.batch_size = 2});
  std::set<std::vector<std::pair<int64_t, double>>> epochs;
  while (loader.epoch() < 3)
    epochs.insert(run_through(loader));
  EXPECT_EQ(epochs.size(), 3);
  sampler.set_epoch(1);
  EXPECT_TRUE(epochs.contains(run_through(loader)));
}

TEST(LoaderWorkers, ASampleThatIsDrawnAgainHasOtherChance) {
  std::vector<double> weights(8, 0.0);
  weights[3] = 1;
  std::set<double> alone;
  for (const int ranks : {1, 2}) {
    std::set<double> seen;
    for (int rank = 0; rank < ranks; ++rank) {
      auto sampler = std::make_shared<DistributedSampler>(
          weighted(weights, 12), SamplerOptions{.num_replicas = ranks, .rank = rank});
      DataLoader loader(numbers(8), sampler, {.batch_size = 3, .workers = 1});
      for (const auto& [index, noise] : run_through(loader))
        seen.insert(noise);
    }
    EXPECT_EQ(seen.size(), 12);
    if (ranks == 1)
      alone = seen;
    EXPECT_EQ(seen, alone);
  }
}

TEST(LoaderWeights, OfUnpaddedStepsOfSeveralBatches) {
  for (const auto& shares :
       {std::vector<int64_t>{}, std::vector<int64_t>{4, 4}, std::vector<int64_t>{4, 2}}) {
    for (int64_t size = 1; size < 30; ++size) {
      std::map<int64_t, double> sums;  // of each step, over ranks
      for (int rank = 0; rank < 2; ++rank) {
        auto sampler =
            sampler_of(size, {.num_replicas = 2, .rank = rank, .pad = false, .shares = shares});
        DataLoader loader(numbers(size),
                          sampler,
                          {.batch_size = shares.empty() ? 4 : shares[static_cast<size_t>(rank)],
                           .accumulate = 2});
        int64_t step = 0;
        const torch::NoGradGuard no_grad;
        for (const auto& batch : loader) {
          sums[step] += batch.weight / 2;
          if (batch.last)
            ++step;
        }
      }
      for (const auto& [step, sum] : sums)
        EXPECT_NEAR(sum, 1, 1e-12) << size << " samples, step " << step;
    }
  }
}

TEST(LoaderWeights, AForgottenWeightIsFound) {
  DataLoader loader(numbers(8), {.batch_size = 2, .accumulate = 2});
  const auto forget = [&] {
    for (const auto& batch : loader)
      (void)batch.index;
  };
  EXPECT_THAT(message_of(forget),
              HasSubstr("the loss of batch 0 to be multiplied with batch.weight, 0.5, got"));
  for (const auto& batch : loader)
    (void)(batch.noise * batch.weight);
  const torch::NoGradGuard no_grad;
  forget();
}

TEST(LoaderWeights, OfUnpaddedBatchesAreThoseOfTheJoinedBatch) {
  double sum = 0;
  for (int rank = 0; rank < 3; ++rank) {
    DataLoader loader(numbers(10),
                      sampler_of(10, {.num_replicas = 3, .rank = rank, .pad = false}),
                      {.batch_size = 4});
    const torch::NoGradGuard no_grad;
    for (const auto& batch : loader) {
      EXPECT_DOUBLE_EQ(batch.weight, 3.0 * static_cast<double>(batch.size()) / 10);
      sum += batch.weight / 3;
    }
  }
  EXPECT_DOUBLE_EQ(sum, 1);
}

}  // namespace
}  // namespace muster
