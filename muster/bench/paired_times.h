// Times of things that take turns, and their ratios: each round has one time of each kind, taken
// within moments, so a ratio within a round is free of what the machine did in other rounds. Knows
// nothing of what is timed.
#pragma once

#include <string>
#include <vector>

namespace muster {

inline constexpr const char* kNoCommunication = "none";

struct PairedTimes {
  std::vector<std::string> kinds;
  std::vector<std::vector<double>> rounds;  // a time for each kind
};

// The middle of values, and where a quarter and three quarters of them lie below.
struct Spread {
  double median = 0, low = 0, high = 0;
};

// Throws: invalid_argument for no values.
Spread spread_of(std::vector<double> values);

Spread times_of(const PairedTimes& times, size_t kind);
// Of each round's time of `kind` to that of `baseline`, and what it is more.
Spread ratios_of(const PairedTimes& times, size_t kind, size_t baseline);
Spread differences_of(const PairedTimes& times, size_t kind, size_t baseline);

}  // namespace muster
