// Times of things that take turns, and their ratios: each round has one time of each kind, taken
// within moments, so a ratio within a round is free of what the machine did in other rounds. Knows
// nothing of what is timed.
#pragma once

#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

inline constexpr auto kNoCommunication = "none";

struct PairedTimes {
  Strings kinds;
  std::vector<Doubles> rounds;  // a time for each kind
};

// The middle of values, and the values below which a quarter and three quarters of them lie.
struct Spread {
  double median = 0, low = 0, high = 0;
};

// The spreads over all rounds: of the time of `kind`, of its ratio to the time of `baseline` in the
// same round, and of what it is more than that.
Spread times_of(const PairedTimes& times, size_t kind);
Spread ratios_of(const PairedTimes& times, size_t kind, size_t baseline);
Spread differences_of(const PairedTimes& times, size_t kind, size_t baseline);

}  // namespace muster
