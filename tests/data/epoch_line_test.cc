#include "muster/data/epoch_line.h"

#include <gmock/gmock.h>

#include <utility>
#include <vector>

namespace muster {
namespace {

using ::testing::ElementsAre;

// Epochs of `size` batches, up to and with epoch `last`.
EpochBatches epochs_of(int64_t size, int64_t last, int64_t epoch = 0) {
  EpochBatches batches{.size = size, .epoch = epoch};
  if (epoch < last)
    batches.next = [=] {
      return epochs_of(size, last, epoch + 1);
    };
  return batches;
}

// Epoch and batch of each number, up to the end.
std::vector<std::pair<int64_t, int64_t>> places_of(EpochLine& line) {
  std::vector<std::pair<int64_t, int64_t>> places;
  for (int64_t number = 0;; ++number) {
    const auto place = line.at(number);
    if (!place.epoch)
      return places;
    places.emplace_back(place.epoch->epoch, place.batch);
  }
}

TEST(EpochLine, NumbersBatchesThroughUpToTheLastStep) {
  using P = std::pair<int64_t, int64_t>;
  EpochLine line(epochs_of(3, 100), /*steps=*/5, /*accumulate=*/2);
  EXPECT_THAT(places_of(line),
              ElementsAre(P(0, 0), P(0, 1), P(0, 2), P(1, 0), P(1, 1), P(1, 2), P(2, 0), P(2, 1)));
  EpochLine none(epochs_of(3, 100), 0, 1);
  EXPECT_TRUE(places_of(none).empty());
  EpochLine alone(epochs_of(2, 100), -1, 1);
  EXPECT_THAT(places_of(alone), ElementsAre(P(0, 0), P(0, 1)));
  EpochLine unknown(epochs_of(1, 2), 100, 1);
  EXPECT_THAT(places_of(unknown), ElementsAre(P(0, 0), P(1, 0), P(2, 0)));
}

TEST(EpochLine, EndsBeforeAnEpochWithoutABatch) {
  EpochBatches first{.size = 0};  // the rest of an epoch may be empty
  first.next = [] {
    EpochBatches second{.size = 1, .epoch = 1};
    second.next = [] {
      return EpochBatches{.size = 0, .epoch = 2};
    };
    return second;
  };
  EpochLine line(std::move(first), 100, 1);
  EXPECT_EQ(line.at(0).epoch->epoch, 1);
  EXPECT_EQ(line.at(1).epoch, nullptr);
}

TEST(EpochLine, ForgetsWhatIsOver) {
  EpochLine line(epochs_of(2, 100), 100, 1);
  std::weak_ptr<const EpochBatches> first = line.first();
  line.at(5);
  line.forget_before(1);
  EXPECT_FALSE(first.expired());
  line.forget_before(2);
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(line.at(2).epoch->epoch, 1);
  EXPECT_EQ(line.at(4).epoch->epoch, 2);
}

}  // namespace
}  // namespace muster
