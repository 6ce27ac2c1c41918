// Examples that are made where they will lie in their batch.
#include "muster/data/batch_places.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "muster/data/loader.h"
#include "muster/data/transforms.h"
#include "tests/data/ramps.h"

namespace muster {
namespace {

using test::fill_ramp;
using test::kRamps;
using test::kRampSize;
using test::OneRamp;
using test::Ramp;
using test::ramp_of;

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

// Normalised pictures need no copy: each lies in its batch where normalize() has put it.
struct BlankPhotos : Dataset<OneRamp> {
  int64_t size() const override { return kRamps; }
  OneRamp get(int64_t index, Generator&) const override {
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
struct PairsOfRamps : Dataset<OneRamp> {
  int64_t size() const override { return 12; }
  OneRamp get(int64_t index, Generator&) const override {
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

}  // namespace
}  // namespace muster
