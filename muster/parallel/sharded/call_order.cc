// Two ranks that have made the same calls expect the same next one. So where they go apart, one of
// them at least makes a call that it did not expect, and its number is known to nobody.
#include "muster/parallel/sharded/call_order.h"

#include <cstddef>
#include <utility>

namespace muster {

namespace {

// A model that takes its units in ever new orders needs no more memory.
constexpr size_t kMostKnown = 10'000;
constexpr int64_t kMostUnits = 1'000'000;

}  // namespace

int64_t CallOrder::number_of(int64_t unit) {
  if (next_.size() == kMostKnown)
    next_.clear();
  const auto [place, is_new] = next_.try_emplace(last_, unit);
  const bool is_expected = std::exchange(place->second, unit) == unit && !is_new;
  last_ = {last_[1], unit};
  return is_expected ? unit : ++surprises_ * kMostUnits + unit;
}

}  // namespace muster
