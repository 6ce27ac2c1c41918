#include "muster/parallel/sharded/call_order.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace muster {
namespace {

std::vector<int64_t> numbers_of(CallOrder& order, const std::vector<int64_t>& units) {
  std::vector<int64_t> numbers;
  for (const int64_t unit : units)
    numbers.push_back(order.number_of(unit));
  return numbers;
}

// A step gathers units in forward, and in backward in reverse.
const std::vector<int64_t> kStep = {0, 1, 2, 2, 1, 0};

TEST(CallOrder, ARepeatedOrderHasTheUnitsNumbers) {
  CallOrder order;
  numbers_of(order, kStep);
  numbers_of(order, kStep);
  EXPECT_EQ(numbers_of(order, kStep), kStep);
}

TEST(CallOrder, WhatIsNotExpectedHasANumberOfItsOwn) {
  CallOrder order;
  const auto first = numbers_of(order, {0, 1}), second = numbers_of(order, {1, 0});
  for (const auto& numbers : {first, second})
    for (const int64_t number : numbers)
      EXPECT_GT(number, 1);
  EXPECT_NE(first[0], second[1]);
}

// Equal histories give equal numbers, and the first call that is another has another.
TEST(CallOrder, RanksThatGoApartHaveDifferentNumbersThere) {
  const std::vector<int64_t> other = {0, 2, 1, 1, 2, 0};
  CallOrder one, another;
  for (int step = 0; step < 5; ++step) {
    const auto& units = step % 2 == 0 ? kStep : other;
    EXPECT_EQ(numbers_of(one, units), numbers_of(another, units));
  }
  EXPECT_EQ(one.number_of(0), another.number_of(0));
  EXPECT_NE(one.number_of(1), another.number_of(2));
}

// A random order makes one call in 64 a comparison, beside the first hundred.
TEST(CallOrder, ManySurprisesAreComparedNowAndThen) {
  std::mt19937 random(5);
  CallOrder order;
  int64_t compared = 0;
  for (int call = 0; call < 10'000; ++call) {
    const auto unit = static_cast<int64_t>(random() % 50);
    compared += order.number_of(unit) != unit ? 1 : 0;
  }
  EXPECT_LE(compared, 100 + 10'000 / 64);
  EXPECT_GE(compared, 100);
}

// Where they go apart among many surprises, and are alike from there on.
TEST(CallOrder, RanksThatHaveGoneApartDifferLater) {
  std::mt19937 random(6);
  CallOrder one, another;
  for (int call = 0; call < 10'000; ++call) {
    const auto unit = static_cast<int64_t>(random() % 50);
    one.number_of(unit);
    another.number_of(call == 9'000 ? unit + 1 : unit);
  }
  bool differ = false;
  for (int call = 0; call < 200; ++call)
    differ |= one.number_of(call % 3) != another.number_of(call % 3);
  EXPECT_TRUE(differ);
}

}  // namespace
}  // namespace muster
