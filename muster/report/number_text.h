// Numbers and times as people read them, for the report and `muster top`. Pure.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include "muster/base/lists.h"

namespace muster {

// "0.0812", "12 345", "1.2e-05": four significant digits.
std::string number_text(double value);
std::string number_text(std::integral auto value) {
  return number_text(static_cast<double>(value));
}

// The number with the unit that the name tells: "samples_per_second" → "1 204 samples/s".
std::string value_text(std::string_view name, double value);
// "samples/s", "s", "bytes"; empty: not told by the name.
std::string unit_of(std::string_view name);

// A share of 1 as "12.34%"; never in the user's locale.
std::string percent(double share);

// "2026-11-23 22:37:14" in this machine's time zone.
std::string wall_time_text(double seconds_since_1970);

// "42µs", "1m23s".
std::string duration_text(double seconds);

// Returns where ticks go in [least, most]: at most `count` of them, at round numbers.
Doubles ticks_of(double least, double most, int count);
// "0.25", "10k", "1M".
std::string tick_text(double value);

}  // namespace muster
