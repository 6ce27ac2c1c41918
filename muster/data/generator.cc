#include "muster/data/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <numbers>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/data/mix.h"

namespace muster {

Generator::Generator(int64_t seed, int64_t epoch, int64_t index)
    : engine_(mixed(static_cast<uint64_t>(seed), static_cast<uint64_t>(epoch)),
              static_cast<uint64_t>(index)),
      torch_seed_(mixed(mixed(static_cast<uint64_t>(seed), static_cast<uint64_t>(epoch)),
                        static_cast<uint64_t>(index))) {}

// 53 bits, as many as a double has.
double Generator::uniform() {
  const uint64_t high = engine_();
  const uint64_t low = engine_();
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

double Generator::uniform(double low, double high) {
  return low + (high - low) * uniform();
}

// Box and Muller's; the logarithm's argument is never 0.
double Generator::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

// Lemire's way: the high half of a product, drawn again where the low half would favour some.
int64_t Generator::integer(int64_t count) {
  if (count < 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("generator: expected integers below a count of at least 1, got ",
                    count,
                    "; pass 1 or more"));
  }
  const auto n = static_cast<uint64_t>(count);
  const uint64_t unfair = (0 - n) % n;
  while (true) {
    const uint64_t high = engine_();
    const uint64_t bits = high << 32 | engine_();
    const auto product = static_cast<unsigned __int128>(bits) * n;
    if (static_cast<uint64_t>(product) >= unfair)
      return static_cast<int64_t>(product >> 64);
  }
}

bool Generator::chance(double probability) {
  return uniform() < probability;
}

at::Generator& Generator::torch() {
  if (!torch_)
    torch_ = at::detail::createCPUGenerator(torch_seed_);
  return *torch_;
}

}  // namespace muster
