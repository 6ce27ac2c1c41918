// The numbers of numpy.random.RandomState(seed).randint(n), with which Python's PowerSGD seeds its matrices.
#pragma once

#include <cstdint>
#include <random>

namespace muster {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  // In 0 … limit - 1. Source: numpy's legacy generator: the lowest bits of a word that are enough, drawn
  // until they are below.
  uint32_t below(uint32_t limit) {
    uint32_t mask = limit - 1;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    uint32_t value = 0;
    do {
      value = static_cast<uint32_t>(engine_()) & mask;
      ++drawn_;
    } while (value >= limit);
    return value;
  }

  // Words of the generator that were used.
  int64_t drawn() const { return drawn_; }
  void discard(int64_t words) {
    engine_.discard(static_cast<unsigned long long>(words));
    drawn_ += words;
  }

 private:
  std::mt19937 engine_;
  int64_t drawn_ = 0;
};

}  // namespace muster
