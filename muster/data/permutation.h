// A permutation that is computed for one number at a time, so that it takes no memory at any size.
// Used by orders (sample_order.h, mixture.h).
#pragma once

#include <cstdint>
#include <utility>

#include "muster/data/mix.h"

namespace muster {

// Of 0 … size - 1. Source: a Feistel network over the next power of four, iterated until the result
// is below the size.
class Permutation {
 public:
  // The halves are as small as the size allows, so that few numbers fall outside.
  Permutation(int64_t size, uint64_t key) : size_(size), key_(key) {
    while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < size_)
      ++half_bits_;
  }

  // The network permutes a power of four. A number that falls outside goes through again, less than
  // four times on the average.
  int64_t at(int64_t position) const {
    uint64_t number = position;
    do {
      number = once(number);
    } while (number >= size_);
    return static_cast<int64_t>(number);
  }

 private:
  // Six rounds mix large halves. The fewer bits a half has, the more rounds it takes until every
  // number can be anywhere.
  uint64_t rounds() const { return half_bits_ < 8 ? 24 : 6; }

  // This is a Feistel network: each round can be undone, whatever mixed() gives, so no two numbers
  // become one.
  uint64_t once(uint64_t number) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = number >> half_bits_;
    uint64_t right = number & mask;
    for (uint64_t round = 0; round < rounds(); ++round)
      left = std::exchange(right, left ^ (mixed(key_ + round, right) & mask));
    return left << half_bits_ | right;
  }

  uint64_t size_;
  uint64_t key_;
  uint64_t half_bits_ = 1;
};

}  // namespace muster
