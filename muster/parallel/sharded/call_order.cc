// Two ranks that have made the same calls expect the same next one. So where they go apart, one of
// them at least makes a call that it did not expect. That call, or a later one, has a number that
// no other rank has.
#include "muster/parallel/sharded/call_order.h"

#include <cstddef>
#include <utility>

namespace muster {

namespace {

// A model that takes its units in ever new orders needs no more memory.
constexpr size_t kMostKnown = 10'000;

}  // namespace

bool CallOrder::is_expected(int64_t unit) {
  if (next_.size() == kMostKnown)
    next_.clear();
  const auto [place, is_new] = next_.try_emplace(last_, unit);
  last_ = {last_[1], unit};
  return std::exchange(place->second, unit) == unit && !is_new;
}

int64_t CallOrder::number_of(int64_t unit) {
  history_ = (history_ ^ static_cast<uint64_t>(unit + 1)) * 0x9E3779B97F4A7C15U;
  has_surprised_ |= !is_expected(unit);
  if (!budget_.may_compare() || !std::exchange(has_surprised_, false))
    return unit;
  budget_.take();
  return static_cast<int64_t>(history_ >> 1U);
}

}  // namespace muster
