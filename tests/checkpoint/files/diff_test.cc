#include "muster/checkpoint/files/diff.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/checkpoint/plain_checkpoint.h"

namespace muster {
namespace {

using test::put_safetensors;
using test::RawTensor;
using Kind = TensorDifference::Kind;

template <class T>
RawTensor values(const std::string& dtype, std::vector<T> list) {
  std::string bytes(list.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), list.data(), bytes.size());
  return {dtype, {static_cast<int64_t>(list.size())}, bytes};
}

TensorsDifference difference(const std::map<std::string, RawTensor>& a,
                             const std::map<std::string, RawTensor>& b) {
  const test::TempFolder folder;
  put_safetensors(folder / "a", a);
  put_safetensors(folder / "b", b);
  return compare_tensors(TensorSource({folder / "a"}), TensorSource({folder / "b"}));
}

// The largest difference of one tensor with these values; NAN: there is none.
template <class T>
double largest(const std::string& dtype, std::vector<T> a, std::vector<T> b) {
  const auto found = difference({{"x", values(dtype, a)}}, {{"x", values(dtype, b)}});
  EXPECT_EQ(found.tensors.size(), 1U) << dtype;
  return found.tensors.empty() ? -1 : found.tensors[0].largest.value_or(NAN);
}

TEST(CheckpointDiff, TheLargestDifferenceOfEveryType) {
  EXPECT_EQ(largest<double>("F64", {1, 2, 3}, {1, 2.5, 2}), 1);
  EXPECT_EQ(largest<float>("F32", {1, 2}, {1.25F, 2}), 0.25);
  EXPECT_EQ(largest<float>("F32", {0.0F}, {-0.0F}), 0);
  EXPECT_EQ(largest<uint16_t>("F16", {0x3c00}, {0x4000}), 1);  // 1 and 2
  EXPECT_EQ(largest<uint16_t>("F16", {0x0001}, {0}), std::ldexp(1, -24));
  EXPECT_EQ(largest<uint16_t>("F16", {0xfbff}, {0x7bff}), 2 * 65504);
  EXPECT_EQ(largest<uint16_t>("BF16", {0x3f80}, {0xbf80}), 2);  // 1 and -1
  EXPECT_EQ(largest<int8_t>("I8", {-128}, {127}), 255);
  EXPECT_EQ(largest<uint8_t>("U8", {255}, {1}), 254);
  EXPECT_EQ(largest<int16_t>("I16", {-5}, {5}), 10);
  EXPECT_EQ(largest<int32_t>("I32", {7}, {9}), 2);
  const auto least = std::numeric_limits<int64_t>::min(),
             most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(largest<int64_t>("I64", {least}, {most}), std::ldexp(1, 64));
  EXPECT_EQ(largest<int64_t>("I64", {most}, {most - 1}), 1);
  EXPECT_EQ(largest<uint64_t>("U64", {UINT64_MAX}, {0}), std::ldexp(1, 64));
  EXPECT_TRUE(std::isnan(largest<float>("F32", {NAN, 1}, {1, 9})));
  EXPECT_TRUE(std::isnan(largest<float>("F32", {1, NAN}, {9, 1})));
  EXPECT_TRUE(std::isnan(largest<uint8_t>("BOOL", {0}, {1})));
  EXPECT_TRUE(std::isnan(largest<uint64_t>("C64", {0}, {1})));
}

TEST(CheckpointDiff, WhatOnlyOneHasAndOtherKinds) {
  const auto x = values<float>("F32", {1, 2});
  RawTensor row = x;
  row.shape = {1, 2};
  const auto found =
      difference({{"both", x}, {"gone", x}, {"shape", x}, {"nan", values<float>("F32", {NAN})}},
                 {{"both", x}, {"new", x}, {"shape", row}, {"nan", values<float>("F32", {NAN})}});
  EXPECT_EQ(found.equal, 2U) << "the same bits are equal, and be they no number";
  ASSERT_EQ(found.tensors.size(), 3U);
  EXPECT_EQ(found.tensors[0].kind, Kind::only_in_first);
  EXPECT_EQ(found.tensors[1].kind, Kind::other_kind);
  EXPECT_EQ(found.tensors[1].second, "F32[1, 2]");
  EXPECT_EQ(found.tensors[2].kind, Kind::only_in_second);
}

TEST(CheckpointDiff, ManyPiecesAndOtherPlaces) {
  std::vector<float> a(1'000'000, 1), b = a;
  b[999'999] = 3;
  b[5] = 0;
  const auto found = difference({{"x", values("F32", a)}},
                                {{"before", values<float>("F32", {1})}, {"x", values("F32", b)}});
  EXPECT_EQ(found.tensors.at(0).different, 2U);
  EXPECT_EQ(found.tensors.at(0).largest, 2);
}

}  // namespace
}  // namespace muster
