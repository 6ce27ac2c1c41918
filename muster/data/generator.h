// Random numbers that belong to a sample: the same for (seed, epoch, index), whatever the rank, the
// worker and the order of reading. Datasets get one with every sample, for augmentation.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace muster {

class Generator {
 public:
  Generator(int64_t seed, int64_t epoch, int64_t index);
  // A copy draws the same numbers from here on, and neither changes the other's.
  Generator(const Generator& other);
  Generator& operator=(const Generator& other);
  Generator(Generator&&) = default;
  Generator& operator=(Generator&&) = default;
  ~Generator() = default;

  // Usable as a <random> generator: std::shuffle(…, generator), std::discrete_distribution, …
  using result_type = uint32_t;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }
  result_type operator()() { return engine_(); }

  double uniform();  // from 0, below 1
  double uniform(double low, double high);
  double normal();  // mean 0, deviation 1
  int64_t integer(
      int64_t count);  // 0 … count - 1, uniformly. Throws: invalid_argument for count < 1.
  bool chance(double probability);  // true with this probability

  // A generator for LibTorch's functions: torch::rand({3}, rng.torch()). Created on first use (2
  // µs).
  at::Generator& torch();

 private:
  at::Philox4_32 engine_;
  uint64_t torch_seed_;
  std::optional<at::Generator> torch_;
};

}  // namespace muster
