// Batches whose memory a loader has used before.
#include "muster/data/batch_memory.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "muster/data/batch_places.h"
#include "muster/data/loader.h"
#include "muster/data/stream_loader.h"
#include "tests/data/ramps.h"

namespace muster {
namespace {

using test::fill_ramp;
using test::kRamps;
using test::kRampSize;
using test::OneRamp;
using test::Ramp;
using test::ramp_of;

// Some are made at their place, some elsewhere.
enum class MadeWhere { in_batch, elsewhere, in_turns };

struct Ramps : Dataset<Ramp> {
  explicit Ramps(MadeWhere how_made) : how(how_made) {}
  int64_t size() const override { return kRamps; }
  Ramp get(int64_t index, Generator&) const override {
    if (bad.contains(index)) {
      fill_ramp(empty_in_batch({kRampSize}, torch::kFloat), -1);  // begun, and then given up
      throw std::runtime_error("cut short");
    }
    const bool there = how == MadeWhere::in_batch || (how == MadeWhere::in_turns && index % 2 == 0);
    auto pixels = there ? empty_in_batch({kRampSize}, torch::kFloat) : torch::empty({kRampSize});
    auto edges = there ? empty_in_batch({kRampSize}, torch::kFloat) : torch::empty({kRampSize});
    fill_ramp(pixels, index);
    fill_ramp(edges, -index);
    return {pixels, edges, torch::tensor(index)};
  }
  MadeWhere how;
  std::set<int64_t> bad;
};

void expect_ramps(const at::Tensor& pixels, const at::Tensor& edges, const at::Tensor& labels) {
  for (int64_t i = 0; i < labels.size(0); ++i) {
    const auto index = labels[i].item<int64_t>();
    ASSERT_TRUE(torch::equal(pixels[i], ramp_of(index))) << index;
    ASSERT_TRUE(torch::equal(edges[i], ramp_of(-index))) << index;
  }
}

class BatchesInReusedMemory : public ::testing::TestWithParam<std::tuple<MadeWhere, int>> {
 protected:
  static Ramps ramps_made() { return Ramps(std::get<0>(GetParam())); }
  static DataLoaderOptions options(int64_t batch_size) {
    return {.batch_size = batch_size,
            .workers = std::get<1>(GetParam()),
            .skip_bad = true,
            .check_weight = false};
  }
};

INSTANTIATE_TEST_SUITE_P(EveryWay,
                         BatchesInReusedMemory,
                         ::testing::Combine(::testing::Values(MadeWhere::in_batch,
                                                              MadeWhere::elsewhere,
                                                              MadeWhere::in_turns),
                                            ::testing::Values(0, 2)));

// 50 samples in batches of 8: the last is shorter.
TEST_P(BatchesInReusedMemory, HaveTheValuesOfTheirSamples) {
  DataLoader loader(ramps_made(), options(8));
  int64_t samples = 0;
  for (const auto& batch : loader.steps(40)) {
    expect_ramps(batch.pixels, batch.edges, batch.label);
    EXPECT_TRUE(batch.pixels.is_contiguous());
    EXPECT_EQ(batch.pixels.storage_offset(), 0);
    EXPECT_EQ(batch.pixels.storage().nbytes(), batch.pixels.nbytes());
    samples += batch.size();
  }
  EXPECT_EQ(samples, 5 * kRamps + 5 * 8);
}

TEST_P(BatchesInReusedMemory, WithoutTheSamplesThatCannotBeRead) {
  Ramps some = ramps_made();
  some.bad = {3, 9, 16, 17, 18, 19, 20, 21, 22, 23};  // all of the batch from 16 on
  DataLoader loader(some, options(8));
  for (const auto& batch : loader.steps(21)) {
    ASSERT_EQ(batch.pixels.size(0), batch.size());
    expect_ramps(batch.pixels, batch.edges, batch.label);
  }
  EXPECT_EQ(loader.bad_samples().size(), 30);
}

// What is kept of every third batch: the batch, a part of it, or what shares its memory.
TEST_P(BatchesInReusedMemory, KeepTheValuesOfWhatIsKept) {
  std::vector<std::function<void()>> checks;
  {
    std::vector<DataLoader<Ramps>> loaders;
    loaders.emplace_back(ramps_made(), options(8));
    int64_t number = 0;
    auto loop = loaders[0].steps(60);
    for (auto it = loop.begin(); it != std::default_sentinel; ++it, ++number) {
      if (number == 20)
        loaders.emplace_back(std::move(loaders[0]));  // the loop goes on, wherever it lies now
      if (number % 3 != 0)
        continue;
      const auto labels = it->label.clone();
      if (number % 4 == 0) {
        checks.push_back([kept = *it] { expect_ramps(kept.pixels, kept.edges, kept.label); });
      } else if (number % 4 == 1) {
        checks.push_back([labels, row = it->pixels[1]] {
          ASSERT_TRUE(torch::equal(row, ramp_of(labels[1].item<int64_t>())));
        });
      } else if (number % 4 == 2) {
        checks.push_back([labels, part = it->edges.slice(1, 5, 100, 3)] {
          const auto index = labels[0].item<int64_t>();
          ASSERT_TRUE(torch::equal(part[0], ramp_of(-index).slice(0, 5, 100, 3)));
        });
      } else {
        checks.push_back([labels, memory = it->pixels.detach().view({-1}).storage()] {
          const auto* const values = static_cast<const float*>(memory.data());
          ASSERT_EQ(values[1], ramp_of(labels[0].item<int64_t>())[1].item<float>());
        });
      }
    }
    EXPECT_EQ(number, 60);
  }
  for (const auto& check : checks)  // their loader is gone
    check();
}

TEST_P(BatchesInReusedMemory, TakeNoMoreMemoryTheLongerTheLoopGoesOn) {
  DataLoader loader(ramps_made(), options(10));
  std::set<const void*> places;
  for (const auto& batch : loader.steps(100)) {
    places.insert(batch.pixels.const_data_ptr());
    places.insert(batch.edges.const_data_ptr());
  }
  const int workers = std::get<1>(GetParam());
  EXPECT_LE(std::ssize(places), 2 * (workers + 2 * workers + 2));
}

TEST_P(BatchesInReusedMemory, AreNotChangedByTheirUser) {
  DataLoader loader(ramps_made(), options(10));
  for (const auto& batch : loader.steps(30)) {
    expect_ramps(batch.pixels, batch.edges, batch.label);
    batch.pixels.zero_();
    batch.edges.add_(1);
    ASSERT_TRUE(torch::equal(batch.edges[0], ramp_of(-batch.label[0].item<int64_t>()) + 1));
  }
}

// Sums of a batch's own gradients, and memory that grows when its loader is gone.
TEST_P(BatchesInReusedMemory, AreTensorsAsAnyOther) {
  at::Tensor kept;
  {
    DataLoader loader(ramps_made(), options(10));
    for (const auto& batch : loader.steps(4)) {
      kept = batch.pixels;
      auto weight = torch::ones({kRampSize}, torch::requires_grad());
      (batch.pixels * weight).sum().backward();
      EXPECT_TRUE(torch::equal(weight.grad(), batch.pixels.sum(0)));
    }
  }
  const auto before = kept.clone();
  kept.resize_({20, kRampSize});
  EXPECT_TRUE(torch::equal(kept.narrow(0, 0, 10), before));
  kept.narrow(0, 10, 10).fill_(3);
  EXPECT_TRUE(torch::equal(kept.narrow(0, 0, 10), before));
}

struct LongExample {
  Padded padded;
  Packed packed;
  torch::Tensor film;
};

struct LongFilms : Dataset<LongExample> {
  int64_t size() const override { return 24; }
  LongExample get(int64_t index, Generator&) const override {
    const auto values = torch::full({40'000 + 1000 * (index % 5)}, index, torch::kFloat);
    auto film = torch::full({2, 3, 40, 30}, index, torch::kFloat);
    return {.padded = {values, {}},
            .packed = {values + 1, {}},
            .film = film.contiguous(torch::MemoryFormat::ChannelsLast)};
  }
};

// As without a loader: the same layout and the same numbers.
TEST(BatchMemories, AreForEveryKindOfField) {
  const LongFilms films;
  DataLoader loader(films, {.batch_size = 6, .check_weight = false});
  for (const auto& batch : loader.steps(12)) {
    std::vector<LongExample> examples;
    Generator rng(0, 0, 0);
    for (const int64_t index : batch.sample_indices)
      examples.push_back(films.get(index, rng));
    const LongExample expected = collate(std::move(examples));
    EXPECT_TRUE(torch::equal(batch.padded.values, expected.padded.values));
    EXPECT_TRUE(torch::equal(batch.packed.values, expected.packed.values));
    EXPECT_TRUE(torch::equal(batch.film, expected.film));
    EXPECT_EQ(batch.film.strides(), expected.film.strides());
  }
}

TEST(BatchMemories, GiveRowsOfTensorsWhatWasUsedBefore) {
  const auto rows = torch::arange(40).view({40, 1}).expand({40, kRampSize}).contiguous();
  DataLoader loader(TensorDataset(rows, torch::arange(40)), {.batch_size = 8, .drop_last = true});
  std::set<const void*> places;
  at::Tensor kept;
  for (const auto& batch : loader.steps(20)) {
    places.insert(batch.features.const_data_ptr());
    ASSERT_TRUE(torch::equal(batch.features.select(1, 3), batch.labels));
    if (loader.stats().batches == 2)
      kept = batch.features;
  }
  EXPECT_LE(places.size(), 3);
  EXPECT_TRUE(torch::equal(kept.select(1, 0), torch::arange(8, 16)));
}

struct RampStream : Stream<OneRamp> {
  struct Reader : StreamReader<OneRamp> {
    explicit Reader(int64_t first) : index(first) {}
    std::optional<OneRamp> next() override {
      if (index >= 200)
        return {};
      auto pixels = empty_in_batch({kRampSize}, torch::kFloat);
      fill_ramp(pixels, index++);
      return OneRamp{pixels};
    }
    int64_t index;
  };
  std::unique_ptr<StreamReader<OneRamp>> open(const StreamPart& part) const override {
    return std::make_unique<Reader>(100 * part.part);
  }
};

TEST(BatchMemories, AreForStreamsToo) {
  const torch::NoGradGuard no_grad;
  StreamLoader loader(RampStream(), {.batch_size = 7, .workers = 1});
  std::set<const void*> places;
  std::vector<at::Tensor> kept;
  int64_t index = 0;
  for (const auto& batch : loader) {
    for (int64_t i = 0; i < batch.size(); ++i)
      ASSERT_TRUE(torch::equal(batch.pixels[i], ramp_of(index++)));
    places.insert(batch.pixels.const_data_ptr());
    if (index % 5 == 0)
      kept.push_back(batch.pixels[0]);
  }
  EXPECT_EQ(index, 200);
  EXPECT_LE(places.size(), 5 + kept.size());
  for (const auto& row : kept)
    EXPECT_TRUE(torch::equal(row, ramp_of(static_cast<int64_t>(row[0].item<float>() / 7))));
}

TEST(BatchMemories, KeepNoMoreThanALoaderNeeds) {
  constexpr size_t kBytes = size_t{1} << 20;
  for (const size_t tensors : {2, 1}) {
    const auto memory = std::make_shared<BatchMemory>(3);
    {
      std::vector<c10::DataPtr> many;
      for (int batch = 0; batch < 20; ++batch) {
        UseOfBatchMemory use(*memory);
        for (size_t i = 0; i < tensors; ++i)
          many.push_back(use.allocate(kBytes));
      }
    }
    EXPECT_EQ(memory->spare_bytes(), 3 * tensors * kBytes);
  }
}

TEST(BatchMemories, GiveOutWhatFits) {
  const auto memory = std::make_shared<BatchMemory>(3);
  constexpr size_t kBytes = size_t{1} << 20;
  memory->note_batch(3 * kBytes);
  {
    std::vector<c10::DataPtr> some;
    for (int i = 0; i < 3; ++i)
      some.push_back(memory->allocate(kBytes));
  }
  const auto small = memory->allocate(kBytes / 8);  // has none of the large ones
  EXPECT_EQ(memory->spare_bytes(), 3 * kBytes);
  const auto like = memory->allocate(kBytes - 100);
  EXPECT_EQ(memory->spare_bytes(), 2 * kBytes);
}

TEST(BatchMemories, MayBeGoneBeforeTheirTensors) {
  auto memory = std::make_shared<BatchMemory>(3);
  at::Tensor kept;
  {
    const UseOfBatchMemory use(*memory);
    kept = batch_tensor(torch::kFloat).resize_({kRampSize}).fill_(5);
  }
  memory.reset();
  std::thread([tensor = std::move(kept)]() mutable {
    EXPECT_EQ(tensor.sum().item<float>(), 5.0F * kRampSize);
    tensor.resize_({2 * kRampSize});
  }).join();
}

}  // namespace
}  // namespace muster
