// Every comparison is made within a round and only then summarised: the median of ratios, not the
// ratio of medians, since what else the machine did in a round is in both of its times.
#include "muster/bench/paired_times.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

// Returns the value below which `part` of the values lie, interpolated between two neighbours.
double quantile(const Doubles& sorted, double part) {
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// Throws: invalid_argument for no values.
Spread spread_of(Doubles values) {
  if (values.empty())
    throw invalid_argument("spread: expected values, got none");
  std::ranges::sort(values);
  return {.median = quantile(values, 0.5),
          .low = quantile(values, 0.25),
          .high = quantile(values, 0.75)};
}

template <class Value>
Spread spread_over(const PairedTimes& times, Value&& value_of_round) {
  return spread_of(mapped(times.rounds, value_of_round));
}

}  // namespace

Spread times_of(const PairedTimes& times, size_t kind) {
  return spread_over(times, [&](const auto& round) { return round[kind]; });
}

Spread ratios_of(const PairedTimes& times, size_t kind, size_t baseline) {
  return spread_over(times, [&](const auto& round) { return round[kind] / round[baseline]; });
}

Spread differences_of(const PairedTimes& times, size_t kind, size_t baseline) {
  return spread_over(times, [&](const auto& round) { return round[kind] - round[baseline]; });
}

}  // namespace muster
