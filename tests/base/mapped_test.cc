// The small functions over ranges of muster/base: what they give of an empty range, of elements
// that come twice, and their order.
#include "muster/base/mapped.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/lookup.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Place {
  std::string host;
  int rank = 0;
};

const std::vector<Place> places = {{"b", 0}, {"a", 1}, {"b", 2}};

TEST(Mapped, DistinctAnswersStandInTheOrderOfTheirFirsts) {
  EXPECT_THAT(distinct(places, &Place::host), ElementsAre("b", "a"));
  EXPECT_THAT(distinct(std::vector<int>{3, 1, 3, 2, 1}), ElementsAre(3, 1, 2));
  EXPECT_THAT(distinct(std::vector<int>()), IsEmpty());
}

TEST(Mapped, FilteredElementsAndIndicesKeepTheirOrder) {
  const auto is_b = [](const Place& place) {
    return place.host == "b";
  };
  EXPECT_THAT(mapped(filtered(places, is_b), &Place::rank), ElementsAre(0, 2));
  EXPECT_THAT(filtered_indices(5, [](int i) { return i % 2 == 1; }), ElementsAre(1, 3));
}

TEST(Mapped, ASumOfNumbersHasTheirType) {
  EXPECT_EQ(sum_of(std::vector<int64_t>{1, int64_t{1} << 40}), (int64_t{1} << 40) + 1);
  EXPECT_EQ(sum_of(std::vector<double>{0.5, 0.25}), 0.75);
  EXPECT_EQ(sum_of(std::vector<double>()), 0);
}

TEST(Mapped, TheGreatestOfNoneIsTheLeast) {
  EXPECT_EQ(max_of<int>(places, &Place::rank), 2);
  EXPECT_EQ(max_of(places, &Place::rank, 7), 7);
  EXPECT_EQ(max_of(std::vector<Place>(), &Place::rank, -3), -3);
}

TEST(Mapped, NothingStandsForElementsOfWhichNothingIsSaid) {
  const auto rank_of_b = [](const Place& place) {
    return place.host == "b" ? std::optional(place.rank) : std::nullopt;
  };
  EXPECT_THAT(mapped_some(places, rank_of_b), ElementsAre(0, 2));
}

TEST(Lookup, AnIndexIsOfTheFirstElementOrNothing) {
  EXPECT_EQ(index_with(places, "b", &Place::host), 0);
  EXPECT_EQ(index_with(places, 1, &Place::rank), 1);
  EXPECT_EQ(index_with(places, "c", &Place::host), std::nullopt);
}

}  // namespace
}  // namespace muster
