#include "muster/checkpoint/files/elements.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Each element's number in the flattened tensor, one after the other.
std::vector<int64_t> numbers_of(const Elements& elements) {
  std::vector<int64_t> numbers;
  for (const ElementRun& run : elements)
    for (int64_t i = 0; i < run.count; ++i)
      for (int64_t j = 0; j < run.length; ++j)
        numbers.push_back(run.begin + i * run.stride + j);
  return numbers;
}

TEST(Elements, ASliceHasTheElementsOfThatSlice) {
  EXPECT_THAT(numbers_of(slice_elements({2, 3}, 1, 1, 2)), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(numbers_of(slice_elements({4, 2}, 0, 1, 2)), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(numbers_of(slice_elements({2, 2, 2}, 1, 1, 1)), ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(slice_elements({2, 3}, 1, 0, 3), all_elements({2, 3}));
  EXPECT_THAT(numbers_of(all_elements({})), ElementsAre(0));
  EXPECT_EQ(element_count(all_elements({3, 0})), 0);
}

TEST(Elements, WhatCannotBeElementsIsNamed) {
  EXPECT_EQ(wrong_elements({{.begin = 0, .length = 6}}, 6), "");
  EXPECT_THAT(wrong_elements({{.begin = 1, .length = 6}}, 6), HasSubstr("element 7 of 6"));
  EXPECT_THAT(wrong_elements({{.begin = -1, .length = 2}}, 6), HasSubstr("below 0"));
  EXPECT_THAT(wrong_elements({{.begin = 0, .length = 3, .stride = 2, .count = 2}}, 6),
              HasSubstr("twice"));
  EXPECT_THAT(wrong_elements({{.begin = 0, .length = 2}, {.begin = 1, .length = 1}}, 6),
              HasSubstr("twice"));
  const int64_t huge = INT64_MAX;
  EXPECT_THAT(wrong_elements({{.begin = huge - 1, .length = 2}}, huge),
              HasSubstr("more elements than"));
  EXPECT_NE(wrong_elements({{.begin = huge, .length = huge, .stride = huge, .count = huge}}, huge),
            "");
  EXPECT_THAT(wrong_elements({{.begin = 0, .length = 0, .stride = 0, .count = huge}}, 6),
              HasSubstr("stretches without elements"));
  EXPECT_THAT(wrong_elements({{.begin = 0, .length = 1, .stride = 1, .count = 1 << 25}}, 1 << 26),
              HasSubstr("33554432 stretches"));
  EXPECT_EQ(element_count(std::vector<int64_t>{huge, huge}), huge);
}

// Random divisions of random tensors: what two holders have in common is found where both have it,
// and all of it.
TEST(Elements, CommonElementsAreThoseOfBoth) {
  std::mt19937 random(7);
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  for (int round = 0; round < 500; ++round) {
    const std::vector<int64_t> shape = {1 + below(5), 1 + below(5), 1 + below(5)};
    const int64_t total = element_count(shape);
    const auto some = [&]() -> Elements {
      if (below(2) == 0) {
        const int64_t begin = below(total);
        return {{.begin = begin, .length = 1 + below(total - begin)}};
      }
      const auto dim = static_cast<size_t>(below(3));
      const int64_t begin = below(shape[dim]);
      return slice_elements(shape, dim, begin, 1 + below(shape[dim] - begin));
    };
    const Elements a = some(), b = some();
    ASSERT_EQ(wrong_elements(a, total), "");
    const std::vector<int64_t> in_a = numbers_of(a), in_b = numbers_of(b);
    std::vector<int64_t> common;
    for (const CommonElements& part : common_elements(a, b)) {
      for (int64_t i = 0; i < part.length; ++i) {
        const int64_t number = in_a.at(static_cast<size_t>(part.at_first + i));
        EXPECT_EQ(number, in_b.at(static_cast<size_t>(part.at_second + i)));
        common.push_back(number);
      }
    }
    std::vector<int64_t> expected;
    for (const int64_t number : in_a)
      if (std::find(in_b.begin(), in_b.end(), number) != in_b.end())
        expected.push_back(number);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(common, expected);
  }
}

}  // namespace
}  // namespace muster
