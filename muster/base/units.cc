// How it works: a text is numbers with units behind them, and a unit is a factor: of a byte, or of
// a millisecond. Nothing depends on the locale.
#include "muster/base/units.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <optional>
#include <system_error>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Ten thousand days: clocks count nanoseconds in 63 bits.
constexpr double kLongestMilliseconds = 864e9;

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kSizeUnits[] = {{"", 1},
                               {"B", 1},
                               {"KB", 1e3},
                               {"MB", 1e6},
                               {"GB", 1e9},
                               {"TB", 1e12},
                               {"KiB", 1024},
                               {"MiB", 1048576.0},
                               {"GiB", 1073741824.0},
                               {"TiB", 1099511627776.0}};
constexpr Unit kDurationUnits[] = {
    {"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"min", 60e3}, {"h", 3600e3}, {"d", 86400e3}};

// Nothing for a name that is no unit. The empty name is one of sizes.
template <size_t N>
std::optional<double> factor_of(const Unit (&units)[N], std::string_view name) {
  const Unit* const unit = element_with(units, name, &Unit::name);
  return unit != nullptr ? std::optional(unit->factor) : std::nullopt;
}

// Takes a non-negative number from the front of `text`; nothing, and takes nothing, without one.
std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || value < 0 || !std::isfinite(value))
    return std::nullopt;
  text.remove_prefix(end - text.data());
  return value;
}

// The time in a text such as "1h30m"; a number alone means seconds. Nothing for another text.
std::optional<double> milliseconds_in(std::string_view text) {
  if (text.empty())
    return std::nullopt;
  double total = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const bool is_first = rest.size() == text.size();
    const auto number = take_number(rest);
    if (!number)
      return std::nullopt;
    const size_t end = std::min(rest.find_first_of("0123456789."), rest.size());
    const bool is_alone = rest.empty() && is_first;
    const auto factor = factor_of(kDurationUnits, is_alone ? "s" : rest.substr(0, end));
    if (!factor)
      return std::nullopt;
    total += *number * *factor;
    rest.remove_prefix(end);
  }
  return total;
}

// to_chars writes a point whatever the locale.
std::string with_one_decimal(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value, std::chars_format::fixed, 1).ptr};
}

// Minutes and seconds below ten get a zero before them.
std::string with_two_digits(int64_t value) {
  return cat(value < 10 ? "0" : "", value);
}

}  // namespace

// The limit is a little below 2^64, as a double cannot hold that number less one.
uint64_t parse_bytes(std::string_view text, std::string_view what) {
  std::string_view rest = trim(text);
  const auto number = take_number(rest);
  const auto factor = factor_of(kSizeUnits, trim(rest));
  const bool is_size = number && factor;
  if (!is_size || *number * *factor >= 1.8e19) {
    throw invalid_argument(
        what,
        ": expected ",
        is_size ? "less than 16777216 TiB"
                : "a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 40GiB",
        ", got '",
        printable(text),
        "'; correct it");
  }
  return static_cast<uint64_t>(std::round(*number * *factor));
}

milliseconds parse_duration(std::string_view text, std::string_view what) {
  const auto time = milliseconds_in(trim(text));
  if (time && *time <= kLongestMilliseconds)
    return milliseconds(std::llround(*time));
  throw invalid_argument(what,
                         ": expected a time such as 30s, 250ms, 5m or 1h30m, got '",
                         printable(text),
                         "'; correct it");
}

// The largest unit is taken in which the number is at least 1.
std::string format_bytes(uint64_t bytes) {
  constexpr std::string_view kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kNames)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? cat(bytes, " B") : cat(with_one_decimal(value), " ", kNames[unit]);
}

Strings format_compared_bytes(const std::vector<uint64_t>& sizes) {
  return mapped(sizes, [&](uint64_t size) {
    const auto text = format_bytes(size);
    const bool is_alike =
        any_of(sizes, [&](uint64_t other) { return other != size && format_bytes(other) == text; });
    return is_alike ? cat(size, " B") : text;
  });
}

// Times of a minute and more show two units, shorter ones one.
std::string format_duration(std::chrono::nanoseconds duration) {
  const auto whole = std::chrono::duration_cast<milliseconds>(duration);
  const auto ms = whole.count();
  if (ms < 1000)
    return cat(ms, "ms");
  if (ms < 60'000)
    return cat(with_one_decimal(std::chrono::duration<double>(whole).count()), "s");
  const auto s = ms / 1000;
  if (s < 3600)
    return cat(s / 60, "m", with_two_digits(s % 60), "s");
  return cat(s / 3600, "h", with_two_digits(s / 60 % 60), "m");
}

std::string format_seconds(double seconds) {
  return format_duration(milliseconds(std::llround(std::max(0.0, seconds) * 1'000)));
}

std::string format_local_time(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm local{};
  char text[32];
  if (::localtime_r(&time, &local) == nullptr)
    return "-";
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local)};
}

}  // namespace muster
