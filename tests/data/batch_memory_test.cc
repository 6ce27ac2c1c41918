// Batches whose memory a loader has used before, and examples that are made where they will lie.
#include "muster/data/batch_memory.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
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
#include "muster/data/transforms.h"

namespace muster {
namespace {

constexpr int64_t kRampSize = 1 << 15;  // 128 KiB of floats
constexpr int64_t kRamps = 50;

struct Ramp {
  torch::Tensor pixels, edges, label;
};

// Each sample's numbers follow from its index. Some are made at their place, some elsewhere.
enum class MadeWhere { in_batch, elsewhere, in_turns };

void fill_ramp(const at::Tensor& pixels, int64_t index) {
  pixels.copy_(torch::arange(pixels.numel(), torch::kFloat).view_as(pixels).add_(index * 7));
}

at::Tensor ramp_of(int64_t index) {
  auto pixels = torch::empty({kRampSize});
  fill_ramp(pixels, index);
  return pixels;
}

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

// A data set that has each sample made once. What it keeps is nobody else's.
struct CachedRamps : Dataset<Ramp> {
  int64_t size() const override { return kRamps; }
  Ramp get(int64_t index, Generator&) const override {
    const std::lock_guard lock(*mutex);
    auto& made = (*all)[index];
    if (!made.pixels.defined() && index % step == 0) {
      made = {empty_in_batch({kRampSize}, torch::kFloat),
              torch::full({3}, index),
              torch::tensor(index)};
      fill_ramp(made.pixels, index);
    } else if (!made.pixels.defined()) {
      auto pixels = empty_in_batch({kRampSize}, torch::kFloat);
      fill_ramp(pixels, index);
      return {pixels, torch::full({3}, index), torch::tensor(index)};
    }
    return made;
  }
  void expect_untouched() const {
    for (const auto& [index, ramp] : *all) {
      if (!ramp.pixels.defined())
        continue;
      EXPECT_TRUE(torch::equal(ramp.pixels, ramp_of(index)));
    }
  }
  int64_t step = 1;
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::map<int64_t, Ramp>> all = std::make_shared<std::map<int64_t, Ramp>>();
};

TEST(BatchPlaces, LeaveADataSetWhatItKeeps) {
  for (const int64_t step : {1, 7}) {
    for (const int workers : {0, 2}) {
      CachedRamps cached;
      cached.step = step;
      DataLoader loader(cached, {.batch_size = 10, .workers = workers, .check_weight = false});
      for (const auto& batch : loader.steps(30)) {
        for (int64_t i = 0; i < batch.size(); ++i)
          ASSERT_TRUE(torch::equal(batch.pixels[i], ramp_of(batch.sample_indices[i])));
        batch.pixels.zero_();
      }
      cached.expect_untouched();
    }
  }
}

struct BlankPhoto {
  torch::Tensor pixels;
};

// Normalised pictures need no copy: each lies in its batch where normalize() has put it.
struct BlankPhotos : Dataset<BlankPhoto> {
  int64_t size() const override { return kRamps; }
  BlankPhoto get(int64_t index, Generator&) const override {
    auto made = transform::normalize(
        picture(index), transform::kImageNetMean, transform::kImageNetDeviation);
    const std::lock_guard lock(*mutex);
    made_at->insert(made.const_data_ptr());
    return {std::move(made)};
  }
  static at::Tensor picture(int64_t index) { return torch::full({3, 40, 50}, index, torch::kByte); }
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::set<const void*>> made_at = std::make_shared<std::set<const void*>>();
};

TEST(BatchPlaces, HavePicturesFromTheSecondBatchOn) {
  for (const int workers : {0, 1}) {
    const BlankPhotos photos;
    DataLoader loader(photos, {.batch_size = 10, .workers = workers});
    int64_t number = 0;
    for (const auto& batch : loader) {
      for (int64_t i = 0; i < batch.size(); ++i) {
        EXPECT_EQ(photos.made_at->contains(batch.pixels[i].const_data_ptr()), number > 0);
        EXPECT_TRUE(torch::equal(batch.pixels[i],
                                 transform::normalize(BlankPhotos::picture(batch.sample_indices[i]),
                                                      transform::kImageNetMean,
                                                      transform::kImageNetDeviation)));
      }
      ++number;
    }
  }
}

TEST(BatchPlaces, AreOnlyWithinALoader) {
  const auto alone = empty_in_batch({kRampSize}, torch::kFloat);
  EXPECT_EQ(alone.storage().nbytes(), alone.nbytes());
  EXPECT_EQ(empty_in_batch({0, 3}, torch::kByte).numel(), 0);
  EXPECT_EQ(empty_in_batch({}, torch::kLong).dim(), 0);
}

// Two crops of a picture as an example of their own: they are no batch.
struct PairsOfRamps : Dataset<BlankPhoto> {
  int64_t size() const override { return 12; }
  BlankPhoto get(int64_t index, Generator&) const override {
    std::vector<at::Tensor> two{empty_in_batch({kRampSize}, torch::kFloat),
                                empty_in_batch({kRampSize}, torch::kFloat)};
    fill_ramp(two[0], index);
    fill_ramp(two[1], index + 100);
    return {collate(std::move(two))};
  }
};

TEST(BatchPlaces, ArePartsOfNoExampleThatIsCollatedItself) {
  DataLoader loader(PairsOfRamps(), {.batch_size = 2, .check_weight = false});
  for (const auto& batch : loader.steps(20)) {
    ASSERT_EQ(batch.pixels.sizes(), (std::vector<int64_t>{2, 2, kRampSize}));
    for (int64_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(torch::equal(batch.pixels[i][0], ramp_of(batch.sample_indices[i])));
      ASSERT_TRUE(torch::equal(batch.pixels[i][1], ramp_of(batch.sample_indices[i] + 100)));
    }
  }
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

struct RampStream : Stream<BlankPhoto> {
  struct Reader : StreamReader<BlankPhoto> {
    explicit Reader(int64_t first) : index(first) {}
    std::optional<BlankPhoto> next() override {
      if (index >= 200)
        return {};
      auto pixels = empty_in_batch({kRampSize}, torch::kFloat);
      fill_ramp(pixels, index++);
      return BlankPhoto{pixels};
    }
    int64_t index;
  };
  std::unique_ptr<StreamReader<BlankPhoto>> open(const StreamPart& part) const override {
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
  const auto memory = std::make_shared<BatchMemory>(3);
  constexpr size_t kBytes = size_t{1} << 20;
  {
    std::vector<c10::DataPtr> many;
    for (int i = 0; i < 20; ++i)
      many.push_back(memory->allocate(kBytes));
  }
  EXPECT_EQ(memory->spare_bytes(), 3 * kBytes);
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
