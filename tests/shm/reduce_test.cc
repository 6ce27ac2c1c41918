// The loops of every instruction set against the definition, element by element.
#include "muster/shm/reduce.h"

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace muster::shm {
namespace {

constexpr const char* kSets[] = {"plain", "avx2", "avx512"};
constexpr size_t kElements[] = {1, 7, 64, 2047, 2048, 2049, 5000};

std::vector<std::vector<std::byte>> random_sources(Type type,
                                                   int sources,
                                                   size_t count,
                                                   uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<std::byte>> all(static_cast<size_t>(sources));
  for (auto& source : all) {
    source.resize(count * size_of(type));
    for (size_t i = 0; i < count; ++i) {
      std::byte* const at = source.data() + i * size_of(type);
      const auto put = [&](auto value) {
        std::memcpy(at, &value, sizeof(value));
      };
      const float real = std::normal_distribution<float>()(random);
      if (type == Type::f64)
        put(static_cast<double>(real));
      else if (type == Type::f32)
        put(real);
      else if (type == Type::c64)
        put(std::array{real, real * 3});
      else if (type == Type::c128)
        put(std::array{double{real}, double{real} * 3});
      else if (type == Type::boolean)
        put(static_cast<uint8_t>(random() & 1));
      else
        for (size_t k = 0; k < size_of(type); ++k)
          at[k] = static_cast<std::byte>(random());
    }
  }
  return all;
}

std::vector<std::byte> reduced_by(Reduce reduce,
                                  const std::vector<std::vector<std::byte>>& sources,
                                  size_t count) {
  std::vector<const void*> in;
  for (const auto& source : sources)
    in.push_back(source.data());
  std::vector<std::byte> out(sources[0].size());
  reduce(out.data(), in.data(), static_cast<int>(in.size()), count);
  return out;
}

// Everything but NaNs' payloads must agree between the sets: the order of additions is one.
TEST(Reduce, EverySetOfInstructionsGivesTheSameBits) {
  for (const char* set : kSets) {
    if (reduce_for(Type::f32, Op::sum, set) == nullptr) {
      std::cout << "not on this processor: " << set << "\n";
      continue;
    }
    for (auto type = Type::f64; type < Type::other;
         type = static_cast<Type>(static_cast<int>(type) + 1)) {
      for (auto op = Op::sum; op <= Op::bxor; op = static_cast<Op>(static_cast<int>(op) + 1)) {
        const Reduce plain = reduce_for(type, op, "plain");
        const Reduce other = reduce_for(type, op, set);
        ASSERT_EQ(plain == nullptr, other == nullptr);
        if (plain == nullptr)
          continue;
        for (const size_t count : kElements) {
          for (const int sources : {1, 2, 3, 8}) {
            const auto in = random_sources(type, sources, count, static_cast<uint32_t>(count));
            auto expected = reduced_by(plain, in, count);
            auto got = reduced_by(other, in, count);
            if (type == Type::f16 || type == Type::bf16) {  // random bits: some are NaN
              for (auto* bytes : {&expected, &got}) {
                for (size_t i = 0; i < count; ++i) {
                  uint16_t bits;
                  std::memcpy(&bits, bytes->data() + 2 * i, 2);
                  const bool nan =
                      type == Type::f16 ? (bits & 0x7fff) > 0x7c00 : (bits & 0x7fff) > 0x7f80;
                  if (nan)
                    std::memset(bytes->data() + 2 * i, 0xff, 2);
                }
              }
            }
            ASSERT_EQ(expected, got) << set << " " << to_string(type) << " " << to_string(op) << " "
                                     << count << " of " << sources;
          }
        }
      }
    }
  }
}

// One thread flushes numbers this small to zero, as torch::set_flush_denormal asks for; another
// does not.
TEST(Reduce, IsTheSameWhateverTheThreadDoesWithDenormals) {
#if defined(__x86_64__)
  const std::vector<float> tiny(100, 1e-40F);
  const void* const in[] = {tiny.data(), tiny.data(), tiny.data()};
  for (const char* set : kSets) {
    for (const Op op : {Op::sum, Op::avg, Op::max}) {
      const Reduce reduce = reduce_for(Type::f32, op, set);
      if (reduce == nullptr)
        continue;
      for (const int sources : {2, 3}) {
        std::vector<float> kept(tiny.size()), flushed(tiny.size());
        reduce(kept.data(), in, sources, kept.size());
        const unsigned before = _mm_getcsr();
        _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
        reduce(flushed.data(), in, sources, flushed.size());
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        EXPECT_EQ(std::memcmp(kept.data(), flushed.data(), kept.size() * sizeof(float)), 0) << set;
        EXPECT_NE(kept[0], 0) << set;
        EXPECT_EQ(after & 0x8040, 0x8040U) << "the thread's own state is given back";
      }
    }
  }
#endif
}

TEST(Reduce, SumsInRankOrder) {
  const std::vector<std::vector<float>> values = {{1e8F, 1}, {-1e8F, 2}, {1e-3F, 3}};
  const void* in[] = {values[0].data(), values[1].data(), values[2].data()};
  float out[2];
  for (const char* set : kSets) {
    const Reduce reduce = reduce_for(Type::f32, Op::sum, set);
    if (reduce == nullptr)
      continue;
    reduce(out, in, 3, 2);
    EXPECT_EQ(out[0], 1e-3F) << set << ": (1e8 - 1e8) + 1e-3, in this order";
    EXPECT_EQ(out[1], 6.0F);
  }
}

TEST(Reduce, TheResultMayLieWhereASourceDoes) {
  std::vector<float> a(3000, 1), b(3000, 2), c(3000, 4);
  const void* in[] = {a.data(), b.data(), c.data()};
  reduce_for(Type::f32, Op::sum)(b.data(), in, 3, 3000);
  EXPECT_EQ(b, std::vector<float>(3000, 7));
  reduce_for(Type::f32, Op::avg)(a.data(), in, 2, 3000);
  EXPECT_EQ(a, std::vector<float>(3000, 4)) << "(1 + 7) / 2";
}

TEST(Reduce, HalvesAreAddedAsFloats) {
  // 2048 + 1 + 1: in half precision each addition would round back to 2048.
  const uint16_t big = 0x6800, one = 0x3c00;
  const void* in[] = {&big, &one, &one};
  for (const char* set : kSets) {
    const Reduce reduce = reduce_for(Type::f16, Op::sum, set);
    if (reduce == nullptr)
      continue;
    uint16_t out = 0;
    reduce(&out, in, 3, 1);
    EXPECT_EQ(out, 0x6801) << set << ": 2050";
  }
}

// Every half to float and back, by the definition of the format.
TEST(Reduce, EveryHalfIsItself) {
  std::vector<uint16_t> all(65536), out(65536);
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<uint16_t>(i);
  const void* in[] = {all.data()};
  for (const char* set : kSets) {
    for (const Type type : {Type::f16, Type::bf16}) {
      const Reduce reduce = reduce_for(type, Op::sum, set);
      if (reduce == nullptr)
        continue;
      reduce(out.data(), in, 1, all.size());
      const uint32_t infinity = type == Type::f16 ? 0x7c00 : 0x7f80;
      for (uint32_t i = 0; i < 65536; ++i) {
        const bool nan = (i & 0x7fff) > infinity;
        if (nan)
          ASSERT_GT(out[i] & 0x7fffU, infinity) << set;
        else
          ASSERT_EQ(out[i], i) << set << " " << to_string(type);
      }
    }
  }
}

TEST(Reduce, NanWinsInMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float a[] = {nan, 1, 5}, b[] = {2, nan, 3};
  const void* in[] = {a, b};
  float out[3];
  for (const Op op : {Op::min, Op::max}) {
    reduce_for(Type::f32, op)(out, in, 2, 3);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1])) << to_string(op);
    EXPECT_EQ(out[2], op == Op::min ? 3 : 5);
  }
}

TEST(Reduce, WhatMeansNothingIsRefused) {
  EXPECT_EQ(reduce_for(Type::c64, Op::min), nullptr);
  EXPECT_EQ(reduce_for(Type::f32, Op::band), nullptr);
  EXPECT_EQ(reduce_for(Type::i32, Op::avg), nullptr);
  EXPECT_EQ(reduce_for(Type::other, Op::sum), nullptr);
}

TEST(Reduce, BooleansAreLogical) {
  const uint8_t a[] = {0, 1, 1, 2}, b[] = {0, 0, 1, 1};
  const void* in[] = {a, b};
  uint8_t out[4];
  const auto expect = [&](Op op, std::array<uint8_t, 4> expected) {
    reduce_for(Type::boolean, op)(out, in, 2, 4);
    EXPECT_EQ((std::array<uint8_t, 4>{out[0], out[1], out[2], out[3]}), expected) << to_string(op);
  };
  expect(Op::sum, {0, 1, 1, 1});
  expect(Op::product, {0, 0, 1, 1});
  expect(Op::bxor, {0, 1, 0, 0});
}

}  // namespace
}  // namespace muster::shm
