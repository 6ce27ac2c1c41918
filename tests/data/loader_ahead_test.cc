// Workers that go on into the next epoch while the training thread is in this one.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

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
using ::testing::HasSubstr;

// Counts how often each sample is read, and lets a test wait for that.
struct Watched : Numbers {
  struct Reads {
    std::mutex mutex;
    std::condition_variable more;
    std::map<int64_t, int> of_sample;
    int all = 0;
  };
  using Numbers::Numbers;
  Noted get(int64_t index, Generator& rng) const override {
    {
      const std::lock_guard lock(reads->mutex);
      ++reads->of_sample[index];
      ++reads->all;
    }
    reads->more.notify_all();
    return Numbers::get(index, rng);
  }
  // False: they did not come.
  bool wait_for(int count) const {
    std::unique_lock lock(reads->mutex);
    return reads->more.wait_for(
        lock, std::chrono::seconds(60), [&] { return reads->all >= count; });
  }
  std::shared_ptr<Reads> reads = std::make_shared<Reads>();
};

TEST(LoaderAhead, WorkersGoOnIntoTheNextEpochs) {
  const auto watched = std::make_shared<const Watched>(4);
  DataLoader loader(watched, sampler_of(4), {.workers = 2, .ahead = 9});
  auto steps = loader.steps(100);
  auto it = steps.begin();
  ASSERT_TRUE(watched->wait_for(10)) << "one handed out, nine ahead: two epochs and a half";
  EXPECT_EQ(loader.position().step, 1);
  EXPECT_EQ(loader.position().epoch, 0);
  EXPECT_EQ(loader.epoch(), 0);
  for (const auto& [sample, times] : watched->reads->of_sample)
    EXPECT_GE(times, 2) << sample;
}

TEST(LoaderAhead, NothingIsReadAfterTheLastStep) {
  for (const int64_t until : {1, 4, 6, 9}) {
    const auto watched = std::make_shared<const Watched>(8);
    DataLoader loader(watched, sampler_of(8), {.accumulate = 2, .workers = 3, .ahead = 20});
    EXPECT_EQ(run_through(loader.steps(until)).size(), static_cast<size_t>(2 * until));
    EXPECT_EQ(watched->reads->all, 2 * until);
    EXPECT_EQ(run_through(loader.steps(until)).size(), 0U);
    EXPECT_EQ(watched->reads->all, 2 * until);
  }
}

// Epochs of 3 batches and 2 steps, several of which lie ahead.
TEST(LoaderAhead, EpochsReadAheadAreTheSame) {
  const auto make = [](int workers) {
    return DataLoader(numbers(10),
                      sampler_of(10, {.num_replicas = 2, .rank = 1}),
                      {.batch_size = 2, .accumulate = 2, .workers = workers, .ahead = workers * 6});
  };
  auto whole = make(0);
  const auto all = run_through(whole.steps(12));
  for (int64_t stop = 0; stop <= 12; ++stop) {
    auto first = make(2);
    auto seen = run_through(first.steps(stop));
    auto second = make(1);
    second.restore(first.position());
    for (const auto& sample : run_through(second.steps(12)))
      seen.push_back(sample);
    ASSERT_EQ(seen, all) << stop;
    EXPECT_EQ(second.position(), whole.position());
    EXPECT_EQ(second.epoch(), whole.epoch());
  }
}

TEST(LoaderAhead, WhatWasReadAheadUnderOtherSharesIsLeft) {
  for (int64_t change = 1; change < 9; ++change) {  // epochs end after steps 3, 6 and 9
    std::vector<std::vector<std::pair<int64_t, double>>> seen;
    for (const int workers : {0, 2}) {
      DataLoader loader(numbers(24),
                        sampler_of(24, {.num_replicas = 2, .rank = 1, .shares = {4, 4}}),
                        {.batch_size = 4, .workers = workers, .ahead = workers * 4});
      auto& mine = seen.emplace_back();
      for (const auto& batch : loader.steps(10)) {
        EXPECT_EQ(batch.size(), loader.position().step <= change ? 4 : 6) << change;
        (void)static_cast<double>(batch.weight);
        for (int64_t i = 0; i < batch.size(); ++i)
          mine.emplace_back(batch.index[i].item<int64_t>(), batch.noise[i].item<double>());
        if (loader.position().step == change)
          loader.set_shares({2, 6});
      }
    }
    EXPECT_EQ(seen[0], seen[1]) << change;
  }
}

TEST(LoaderAhead, ASamplerThatIsPutElsewhereLeadsThereAfterTheEpoch) {
  for (const int workers : {0, 2}) {
    DistributedSampler sampler(4, {});
    DataLoader loader(Numbers(4), sampler, {.workers = workers, .ahead = workers * 4});
    std::vector<std::pair<int64_t, double>> seen;
    for (const auto& batch : loader.steps(8)) {
      seen.emplace_back(batch.index.item<int64_t>(), batch.noise.item<double>());
      if (loader.position().step == 4)
        sampler.set_epoch(7);
    }
    DataLoader other(numbers(4), sampler_of(4), {});
    other.set_epoch(7);
    EXPECT_EQ(std::vector(seen.begin() + 4, seen.end()), run_through(other));
    EXPECT_EQ(loader.epoch(), 8);
  }
}

TEST(LoaderAhead, ABadSampleOfTheNextEpochDoesNotEndThisOne) {
  DataLoader loader(numbers(4, {2}), sampler_of(4, {.shuffle = false}), {.workers = 1, .ahead = 8});
  loader.restore({.epoch = 0, .consumed = 3, .dataset_size = 4, .step = 3});
  int batches = 0;
  EXPECT_THAT(message_of([&] {
                for ([[maybe_unused]] const auto& batch : loader.steps(100))
                  ++batches;
              }),
              HasSubstr("sample 2 (worker 0)"));
  EXPECT_EQ(batches, 3);
  EXPECT_EQ(loader.position(), (DataPosition{1, 2, 4, 6, loader.position().order, 3}));
}

}  // namespace
}  // namespace muster
