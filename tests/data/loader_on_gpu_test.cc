// Loaders whose batches go to a GPU: what the thread that launches kernels is spared. On a true
// GPU, or on the stand-in of tests/cuda.
#include <c10/core/CPUAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muster/data/batch_places.h"
#include "muster/data/collate.h"
#include "muster/data/concat_dataset.h"
#include "muster/data/device_copy.h"
#include "muster/data/stream_loader.h"
#include "muster/data/subset.h"
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const torch::Device kGpu(torch::kCUDA, 0);
constexpr int64_t kPixels = 1 << 14;
constexpr int64_t kBatch = 8;
constexpr size_t kExampleBytes = kPixels * sizeof(float);
constexpr size_t kBatchBytes = kBatch * kExampleBytes;

class LoaderOnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available())
      GTEST_SKIP() << "no GPU";
  }
};

// The threads that have been somewhere.
class Visitors {
 public:
  void note() {
    const std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
  }
  std::set<std::thread::id> all() const {
    const std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::thread::id> threads_;
};

struct Shade {
  torch::Tensor pixels, label;
};

// Each is a picture of one shade, which chance gives.
struct Shades : Dataset<Shade> {
  int64_t size() const override { return 10 * kBatch; }
  Shade get(int64_t index, Generator& rng) const override {
    visitors->note();
    ++*asked;
    return {torch::full({kPixels}, rng.normal(), torch::kFloat), torch::tensor(index)};
  }
  std::shared_ptr<Visitors> visitors = std::make_shared<Visitors>();
  std::shared_ptr<std::atomic<int64_t>> asked = std::make_shared<std::atomic<int64_t>>(0);
};

// The largest host memory that this thread asks for while it lives.
class LargestOfThisThread {
 public:
  size_t bytes() const { return seen_->largest; }

 private:
  struct Seen : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, torch::Device device) override {
      if (device.is_cpu() && bytes > 0)
        largest = std::max(largest, static_cast<size_t>(bytes));
    }
    bool memoryProfilingEnabled() const override { return true; }
    size_t largest = 0;
  };

  std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, seen_};
};

// Counts the tensors of a batch's size that any thread makes in pageable memory while it lives.
class PageableBatches {
 public:
  PageableBatches() {
    allocator().count = 0;
    c10::SetCPUAllocator(&allocator(), kPriority);
  }
  ~PageableBatches() { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), kPriority); }
  PageableBatches(const PageableBatches&) = delete;
  PageableBatches& operator=(const PageableBatches&) = delete;

  static int64_t count() { return allocator().count; }

 private:
  static constexpr uint8_t kPriority = 200;

  struct Counting : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
      if (bytes >= kBatchBytes)
        ++count;
      return c10::GetDefaultCPUAllocator()->allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override {
      return c10::GetDefaultCPUAllocator()->raw_deleter();
    }
    void copy_data(void* to, const void* from, size_t bytes) const override {
      c10::GetDefaultCPUAllocator()->copy_data(to, from, bytes);
    }
    std::atomic<int64_t> count = 0;
  };

  static Counting& allocator() {
    static auto* const one = new Counting;  // empty tensors keep it
    return *one;
  }
};

void pass_over(auto&& batches) {
  const torch::NoGradGuard no_grad;
  for (const auto& batch : batches)
    (void)batch;
}

DataLoaderOptions on_gpu(std::optional<int> workers = {}) {
  return {.batch_size = kBatch, .device = kGpu, .workers = workers};
}

TEST_F(LoaderOnAGpu, HasOneWorkerThatAloneReads) {
  const Shades shades;
  const LargestOfThisThread largest;
  DataLoader loader(shades, on_gpu());
  pass_over(loader);
  const auto readers = shades.visitors->all();
  EXPECT_EQ(readers.size(), 1);
  EXPECT_FALSE(readers.contains(std::this_thread::get_id()));
  EXPECT_LT(largest.bytes(), kExampleBytes) << "neither read, collated nor pinned here";
}

TEST_F(LoaderOnAGpu, ReadsOnTheTrainingThreadIfAskedTo) {
  const Shades shades;
  const LargestOfThisThread largest;
  DataLoader loader(shades, on_gpu(0));
  pass_over(loader);
  EXPECT_THAT(shades.visitors->all(), ElementsAre(std::this_thread::get_id()));
  EXPECT_GE(largest.bytes(), kExampleBytes);
}

TEST_F(LoaderOnAGpu, CollatesStraightIntoPinnedMemory) {
  for (const std::optional<int> workers : {std::optional<int>(), std::optional<int>(0)}) {
    const PageableBatches pageable;
    DataLoader loader(Shades(), on_gpu(workers));
    pass_over(loader);
    EXPECT_EQ(pageable.count(), 0);
  }
  const PageableBatches pageable;
  DataLoader loader(Shades(),
                    {.batch_size = kBatch, .device = kGpu, .pin_memory = false, .workers = 1});
  pass_over(loader);
  EXPECT_GE(pageable.count(), 1) << "what the other loaders would have been seen by";
}

// Shades that are made at their place in the batch.
struct PlacedShades : Dataset<Shade> {
  int64_t size() const override { return 10 * kBatch; }
  Shade get(int64_t index, Generator& /*rng*/) const override {
    auto pixels = empty_in_batch({kPixels}, torch::kFloat).fill_(index);
    *pinned += pixels.is_pinned() ? 1 : 0;
    return {pixels, torch::tensor(index)};
  }
  std::shared_ptr<std::atomic<int64_t>> pinned = std::make_shared<std::atomic<int64_t>>(0);
};

TEST_F(LoaderOnAGpu, ExamplesAreMadeInPinnedMemory) {
  const torch::NoGradGuard no_grad;
  for (const bool pin : {true, false}) {
    const PlacedShades shades;
    auto options = on_gpu();
    options.pin_memory = pin;
    DataLoader loader(shades, options);
    for (const auto& batch : loader) {
      const auto pixels = batch.pixels.cpu();
      EXPECT_TRUE(torch::equal(pixels.select(1, 0).to(torch::kLong), batch.label.cpu()));
      EXPECT_TRUE(torch::equal(pixels.select(1, kPixels - 1), pixels.select(1, 0)));
    }
    EXPECT_EQ(shades.pinned->load(), pin ? 9 * kBatch : 0) << "all but the first batch";
  }
}

TEST_F(LoaderOnAGpu, PinsWhatItDidNotCollate) {
  const DeviceCopy copy(kGpu, true);
  auto tensor = torch::arange(4);
  copy.pin([&](const auto& change) { change(tensor); });
  EXPECT_TRUE(tensor.is_pinned());
  EXPECT_TRUE(torch::equal(tensor, torch::arange(4)));
}

// A type that collates in its own way does it on the worker too.
struct Own {
  torch::Tensor pixels;
  std::shared_ptr<Visitors> visitors;
  static torch::Tensor collate(const std::vector<Own>& examples) {
    examples.front().visitors->note();
    std::vector<torch::Tensor> all;
    for (const Own& example : examples)
      all.push_back(example.pixels);
    return torch::stack(all);
  }
};

struct Owns : Dataset<Own> {
  int64_t size() const override { return 6; }
  Own get(int64_t index, Generator&) const override { return {torch::full({3}, index), visitors}; }
  std::shared_ptr<Visitors> visitors = std::make_shared<Visitors>();
};

TEST_F(LoaderOnAGpu, CollatesATypesOwnWayOnTheWorker) {
  const Owns owns;
  DataLoader loader(owns, {.batch_size = 2, .device = kGpu});
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& batch : loader)
    sum += batch.sum().cpu().item<double>();
  EXPECT_EQ(sum, 3 * (0 + 1 + 2 + 3 + 4 + 5));
  EXPECT_EQ(owns.visitors->all().size(), 1);
  EXPECT_FALSE(owns.visitors->all().contains(std::this_thread::get_id()));
}

DataLoader<Numbers> numbers_on(torch::Device device, std::optional<int> workers) {
  return {numbers(50),
          sampler_of(50, {.num_replicas = 2, .rank = 1, .seed = 8}),
          {.batch_size = 2, .accumulate = 2, .device = device, .workers = workers}};
}

// Epochs of 13 batches and 7 steps.
TEST_F(LoaderOnAGpu, BatchesAreThoseOfTheTrainingThread) {
  auto on_cpu = numbers_on(torch::kCPU, 0);
  const auto all = run_through(on_cpu.steps(20));
  for (const std::optional<int> workers :
       {std::optional<int>(), std::optional(0), std::optional(3)}) {
    auto loader = numbers_on(kGpu, workers);
    EXPECT_EQ(run_through(loader.steps(20)), all);
    EXPECT_EQ(loader.position(), on_cpu.position());
  }
}

TEST_F(LoaderOnAGpu, ResumesWhereTheTrainingThreadHadRead) {
  auto whole = numbers_on(kGpu, 0);
  const auto all = run_through(whole.steps(20));
  for (const int64_t stop : {1, 6, 7, 8, 19}) {
    auto first = numbers_on(kGpu, {});
    auto seen = run_through(first.steps(stop));
    auto second = numbers_on(kGpu, {});
    second.restore(first.position());
    for (const auto& sample : run_through(second.steps(20)))
      seen.push_back(sample);
    ASSERT_EQ(seen, all) << stop;
    EXPECT_EQ(second.position(), whole.position());
  }
}

struct Place {
  int64_t first = 0;
  double weight = 0;
  bool last = false;
  bool operator==(const Place&) const = default;
};

void add_places(auto&& batches, std::vector<Place>* all) {
  const torch::NoGradGuard no_grad;
  for (const auto& batch : batches)
    all->push_back({batch.index[0].template item<int64_t>(), batch.weight, batch.last});
}

// Batches set out to the GPU before those of the same step are handed out.
TEST_F(LoaderOnAGpu, WholeStepsAreThoseOfTheTrainingThread) {
  auto on_cpu = numbers_on(torch::kCPU, 0);
  std::vector<Place> expected;
  add_places(on_cpu.whole_steps(20), &expected);
  ASSERT_EQ(expected.size(), 40U);
  for (const int64_t stop : {1, 6, 7, 13, 20}) {
    auto first = numbers_on(kGpu, {});
    auto second = numbers_on(kGpu, 2);
    std::vector<Place> all;
    add_places(first.whole_steps(stop), &all);
    second.restore(first.position());
    add_places(second.whole_steps(20), &all);
    EXPECT_EQ(all, expected) << stop;
    EXPECT_EQ(second.position(), on_cpu.position());
  }
}

// The most samples that have been asked for beyond the batch in hand.
int64_t most_ahead(torch::Device device, std::optional<int> workers) {
  const Shades shades;
  DataLoader loader(shades, {.device = device, .workers = workers});
  const torch::NoGradGuard no_grad;
  int64_t in_hand = 0, most = 0;
  for (auto it = loader.begin(); in_hand < 12; ++it) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    most = std::max(most, *shades.asked - ++in_hand);
  }
  return most;
}

TEST_F(LoaderOnAGpu, TwoBatchesAreOnTheirWay) {
  EXPECT_EQ(most_ahead(torch::kCPU, 1), 2);
  EXPECT_EQ(most_ahead(kGpu, {}), 4) << "two on their way, two more with the worker";
  EXPECT_EQ(most_ahead(kGpu, 0), 0);
}

TEST_F(LoaderOnAGpu, ABadSampleComesWithItsOwnBatch) {
  for (const int64_t bad : {0, 5, 13, 19}) {
    DataLoader loader(numbers(20, {bad}), {.batch_size = 4, .device = kGpu});
    int64_t batches = 0;
    const auto pass = [&] {
      for (auto it = loader.begin(); it != loader.end(); ++it) {
        ++batches;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the worker is there already
      }
    };
    EXPECT_THAT(message_of(pass), HasSubstr("sample " + std::to_string(bad) + " (worker 0)"));
    EXPECT_EQ(batches, bad / 4);
  }
}

// What a data set computes on a GPU is computed on the stream of the loop, wherever that is.
TEST_F(LoaderOnAGpu, RowsOfTensorsOnTheGpuComeOnTheLoopsStream) {
  const auto side = c10::impl::VirtualGuardImpl(kGpu.type()).getStreamFromGlobalPool(kGpu);
  const c10::StreamGuard on_side(side);
  const auto rows = torch::arange(20);
  const TensorDataset data(rows.to(kGpu), (rows * 2).to(kGpu));
  DataLoader loader(data, {.batch_size = 4, .device = kGpu});
  const torch::NoGradGuard no_grad;
  int64_t next = 0;
  for (const auto& batch : loader) {
    EXPECT_TRUE(batch.features.is_cuda());
    EXPECT_TRUE(torch::equal(batch.features.cpu(), torch::arange(next, next + 4)));
    EXPECT_TRUE(torch::equal(batch.labels.cpu(), 2 * torch::arange(next, next + 4)));
    next += 4;
  }
  EXPECT_EQ(next, 20);
}

// Of one data set, and of both: gathered into page-locked memory, as those of tensors alone.
TEST_F(LoaderOnAGpu, SubsetsAndJoinedTensorsComeByPinnedMemory) {
  const auto rows = torch::arange(20);
  const TensorDataset data(rows, rows * 2);
  const ConcatDataset all(Subset(data, torch::arange(6)), data);
  const auto mixed = all.get_batch(torch::tensor({5, 6, 0}, torch::kLong), /*pinned=*/true);
  const auto of_one = all.get_batch(torch::tensor({1, 3}, torch::kLong), /*pinned=*/true);
  EXPECT_TRUE(mixed.features.is_pinned() && mixed.labels.is_pinned());
  EXPECT_TRUE(of_one.features.is_pinned() && of_one.labels.is_pinned());
  DataLoader loader(all, {.batch_size = 4, .device = kGpu});
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> read;
  for (const auto& batch : loader)
    read.push_back(batch.labels.cpu());
  EXPECT_TRUE(torch::equal(torch::cat(read), torch::cat({torch::arange(6), rows}) * 2));
}

// It counts from its part's number on.
struct UpTo30 : Stream<int64_t> {
  struct Reader : StreamReader<int64_t> {
    Reader(const StreamPart& part, Visitors& visitors)
        : visitors(visitors), at(part.part), step(part.parts) {}
    std::optional<int64_t> next() override {
      visitors.note();
      if (at >= 30)
        return std::nullopt;
      return std::exchange(at, at + step);
    }
    Visitors& visitors;
    int64_t at, step;
  };
  std::unique_ptr<StreamReader<int64_t>> open(const StreamPart& part) const override {
    return std::make_unique<Reader>(part, *visitors);
  }
  std::shared_ptr<Visitors> visitors = std::make_shared<Visitors>();
};

std::vector<int64_t> numbers_of(auto&& batches) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> seen;
  for (const auto& batch : batches) {
    const torch::Tensor numbers = batch.cpu();
    for (int64_t i = 0; i < numbers.size(0); ++i)
      seen.push_back(numbers[i].template item<int64_t>());
  }
  return seen;
}

TEST_F(LoaderOnAGpu, AStreamHasOneWorkerAndThePartOfNone) {
  const UpTo30 numbers;
  StreamLoader none(numbers, {.batch_size = 4, .device = kGpu, .workers = 0, .ranks = 2});
  const auto all = numbers_of(none.steps(9));
  const UpTo30 watched;
  StreamLoader loader(watched, {.batch_size = 4, .device = kGpu, .ranks = 2});
  auto seen = numbers_of(loader.steps(5));
  EXPECT_EQ(watched.visitors->all().size(), 1);
  EXPECT_FALSE(watched.visitors->all().contains(std::this_thread::get_id()));
  StreamLoader resumed(numbers, {.batch_size = 4, .device = kGpu, .workers = 0, .ranks = 2});
  resumed.restore(loader.position());
  for (const int64_t number : numbers_of(resumed.steps(9)))
    seen.push_back(number);
  EXPECT_EQ(seen, all);
}

template <class Batch>
void expect_equal(const Batch& pinned, const Batch& plain) {
  EXPECT_TRUE(pinned.is_pinned() || pinned.numel() == 0);  // there is nothing to pin
  EXPECT_TRUE(torch::equal(pinned, plain));
  EXPECT_EQ(pinned.strides(), plain.strides());
  EXPECT_EQ(pinned.scalar_type(), plain.scalar_type());
}

auto collated(bool pinned, const auto& examples) {
  const PinnedCollation collation(pinned);
  return collate(examples);
}

TEST_F(LoaderOnAGpu, PinnedBatchesHaveTheSameLayout) {
  const auto hwc = torch::rand({5, 6, 3}).permute({2, 0, 1});
  const auto video = torch::rand({2, 3, 5, 6}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto bytes = torch::randint(256, {4, 3}, torch::kByte).t();
  for (const auto& example : {hwc, video, bytes, torch::rand({4}), torch::empty({0, 3})}) {
    const std::vector<torch::Tensor> two{example, example};
    expect_equal(collated(true, two), collated(false, two));
  }
  const std::vector<Padded> padded{{.values = torch::rand({2, 3}), .lengths = {}},
                                   {.values = torch::rand({4, 3}), .lengths = {}}};
  expect_equal(collated(true, padded).values, collated(false, padded).values);
  const std::vector<Packed> packed{{.values = torch::rand({2, 3}), .offsets = {}},
                                   {.values = torch::rand({4, 3}), .offsets = {}}};
  expect_equal(collated(true, packed).values, collated(false, packed).values);
}

}  // namespace
}  // namespace muster
