// Philox, keyed by seed and epoch, with the sample's index as its subsequence: generators of
// different samples are independent, and making one costs nothing. LibTorch's own generator is far
// larger, so it is made only when it is asked for.
#include "muster/data/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <numbers>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/data/mix.h"

namespace muster {

Generator::Generator(int64_t seed, int64_t epoch, int64_t index)
    : engine_(mixed(seed, epoch), index), torch_seed_(mixed(mixed(seed, epoch), index)) {}

// A copy of LibTorch's generator would share its state.
Generator::Generator(const Generator& other)
    : engine_(other.engine_), torch_seed_(other.torch_seed_) {
  if (other.torch_)
    torch_ = other.torch_->clone();
}

Generator& Generator::operator=(const Generator& other) {
  return *this = Generator(other);
}

// The value has 53 random bits, as many as a double has.
double Generator::uniform() {
  const uint64_t high = engine_();
  const uint64_t low = engine_();
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

double Generator::uniform(double low, double high) {
  return low + (high - low) * uniform();
}

// Source: Box and Muller. The logarithm's argument is never 0, since uniform() is below 1.
double Generator::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

// Source: Lemire. The result is the high half of a product; where the low half would favour some
// numbers, it is drawn again.
int64_t Generator::integer(int64_t count) {
  if (count < 1) {
    throw invalid_argument("generator: expected integers below a count of at least 1, got ",
                           count,
                           "; pass 1 or more");
  }
  const uint64_t n = count;
  using Product = unsigned __int128;
  // This is 2^64 modulo n, since 0 - n wraps around.
  const uint64_t unfair = (0 - n) % n;
  while (true) {
    const uint64_t high = engine_();
    const uint64_t bits = high << 32 | engine_();
    const Product product = Product{bits} * n;
    const uint64_t low_half = product;
    if (low_half >= unfair)
      return static_cast<int64_t>(product >> 64);
  }
}

// A probability of 0 never holds, and one of 1 always does, since uniform() is below 1.
bool Generator::chance(double probability) {
  return uniform() < probability;
}

// LibTorch's generator is seeded by seed, epoch and index alone, so earlier draws do not change its
// numbers.
at::Generator& Generator::torch() {
  if (!torch_)
    torch_ = at::detail::createCPUGenerator(torch_seed_);
  return *torch_;
}

}  // namespace muster
