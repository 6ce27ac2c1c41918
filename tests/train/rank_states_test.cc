#include "muster/checkpoint/training/rank_states.h"

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

// A state of one tensor of floats, of `said` elements, behind which there are the bytes of `sent`.
std::string state_of_floats(int64_t said, size_t sent) {
  const std::string description =
      cat(R"({"tensors": [["w", 6, [)", said, R"(]]], "numbers": [], "texts": []})");
  return cat(description.size(), " ", description, std::string(sent * sizeof(float), '\0'));
}

TEST(RankStates, WhatSaysThatItHasMoreThanItHasIsRefused) {
  SavedState all;
  unpack_state(all, "0/", state_of_floats(3, 3));
  EXPECT_EQ(all.tensors.at("0/w").numel(), 3);
  EXPECT_THROW(unpack_state(all, "1/", state_of_floats(4, 3)), Error);
  EXPECT_THROW(unpack_state(all, "1/", state_of_floats(1'000'000, 3)), Error);
  for (const char* text : {"", "9", "-1 {}", "99 {}", "x {}"})
    EXPECT_THROW(unpack_state(all, "1/", text), Error) << text;
}

}  // namespace
}  // namespace muster
