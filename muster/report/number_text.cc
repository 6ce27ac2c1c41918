// How it works: numbers are written by to_chars() and from integers, so that no locale of the user
// changes them.
#include "muster/report/number_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <utility>

#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {
namespace {

// Returns the number with so many significant digits.
std::string general(double value, int digits) {
  char text[40];
  const auto end =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::general, digits).ptr;
  return {text, end};
}

// "1234567" → "1 234 567", with narrow spaces at which no line breaks.
std::string grouped(std::string digits) {
  const size_t begin = digits.starts_with('-') ? 1 : 0;
  if (digits.size() - begin < 5)
    return digits;
  for (size_t at = digits.size(); at > begin + 3;) {
    at -= 3;
    digits.insert(at, "\u202f");
  }
  return digits;
}

// Whether the name ends with `part` as a word of its own: "step_seconds" does with "seconds".
bool ends_in_part(std::string_view name, std::string_view part) {
  if (!name.ends_with(part))
    return false;
  name.remove_suffix(part.size());
  return name.empty() || !std::isalnum(static_cast<unsigned char>(name.back()));
}

}  // namespace

// Whole numbers keep all of their digits, since steps and sizes are exact.
std::string number_text(double value) {
  if (std::isnan(value))
    return "NaN";
  if (std::isinf(value))
    return value > 0 ? "∞" : "-∞";
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return grouped(cat(static_cast<int64_t>(value)));
  if (std::abs(value) >= 1e3 && std::abs(value) < 1e9)
    return grouped(cat(std::llround(value)));
  return general(value, 4);
}

// Longer names come before those that they end in.
std::string unit_of(std::string_view name) {
  constexpr std::pair<const char*, const char*> kUnits[] = {{"samples_per_second", "samples/s"},
                                                            {"tokens_per_second", "tokens/s"},
                                                            {"images_per_second", "images/s"},
                                                            {"steps_per_second", "steps/s"},
                                                            {"per_second", "/s"},
                                                            {"milliseconds", "ms"},
                                                            {"microseconds", "µs"},
                                                            {"seconds", "s"},
                                                            {"bytes", "bytes"},
                                                            {"percent", "%"},
                                                            {"gib", "GiB"},
                                                            {"watts", "W"}};
  for (const auto& [part, unit] : kUnits) {
    if (ends_in_part(name, part))
      return unit;
  }
  return {};
}

// Sizes are written in units that people read.
std::string value_text(std::string_view name, double value) {
  const auto unit = unit_of(name);
  if (unit == "bytes" && value >= 1024)
    return format_bytes(static_cast<uint64_t>(value));
  return unit.empty() ? number_text(value) : cat(number_text(value), "\u00a0", unit);
}

// Integers are used because printf would write the user's decimal point.
std::string percent(double share) {
  const long hundredths = std::lround(share * 10'000);
  return cat(hundredths / 100, ".", hundredths % 100 < 10 ? "0" : "", hundredths % 100, "%");
}

// The time zone is that of the machine that makes the page.
std::string wall_time_text(double seconds_since_1970) {
  return format_local_time(static_cast<int64_t>(seconds_since_1970));
}

// format_duration() counts in milliseconds, so shorter times are written here.
std::string duration_text(double seconds) {
  constexpr double kMost = 1e9;
  if (seconds > 0 && seconds < 1e-3)
    return general(seconds * 1e6, 3) + "µs";
  if (seconds > 0 && seconds < 0.1)
    return general(seconds * 1e3, 3) + "ms";
  return format_duration(
      std::chrono::nanoseconds(std::llround(std::clamp(seconds, 0.0, kMost) * 1e9)));
}

Doubles ticks_of(double least, double most, int count) {
  if (!(most > least) || count < 1)
    return {least};
  // The step is a power of ten, or the smallest multiple of it that gives few enough ticks.
  double step = std::pow(10, std::floor(std::log10((most - least) / count)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    if ((most - least) / (step * factor) <= count) {
      step *= factor;
      break;
    }
  }
  // The loop counts: a step may be too small to change a double that it is added to.
  const double first = std::ceil(least / step - 1e-9);
  Doubles ticks;
  for (int i = 0; i <= count; ++i) {
    const double tick = (first + i) * step;
    const bool is_on_the_axis = tick <= most + step * 1e-9;  // NaN, of an infinite step, is not
    if (!is_on_the_axis)
      break;
    ticks.push_back(tick);
  }
  return ticks;
}

// Numbers on an axis are short: 10000 is "10k".
std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size < 1e-12)
    return "0";
  if (size >= 1e12 || size < 1e-4)
    return general(value, 3);
  if (size >= 1e9)
    return general(value / 1e9, 4) + "G";
  if (size >= 1e6)
    return general(value / 1e6, 4) + "M";
  if (size >= 1e4)
    return general(value / 1e3, 4) + "k";
  return general(value, 4);
}

}  // namespace muster
