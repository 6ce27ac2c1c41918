// The numbers of numpy.random.RandomState(seed).randint(n), which Python's PowerSGD uses to seed
// its matrices.
#pragma once

#include <cstdint>
#include <random>

namespace muster {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  // Returns a number in 0 … limit - 1. Source: numpy's legacy generator: takes the fewest low bits
  // of a word that suffice, and redraws until the result is below the limit.
  uint32_t below(uint32_t limit) {
    uint32_t mask = limit - 1;
    for (int shift = 1; shift < 32; shift *= 2)
      mask |= mask >> shift;
    uint32_t value = 0;
    do {
      value = static_cast<uint32_t>(engine_()) & mask;
      ++drawn_;
    } while (value >= limit);
    return value;
  }

  // Number of words drawn from the generator.
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
