// Sizes, durations and times as people write them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/strings.h"

namespace muster {

// "512", "20GiB", "1.5 MB" → bytes. Throws: invalid_argument, which begins with `what`: the flag.
uint64_t parse_bytes(std::string_view text, std::string_view what = "size");

// "30s", "5m", "1h30m", "250ms", "2" (seconds); at most 10000 days. Throws: invalid_argument, which
// begins with `what`: the flag or variable.
milliseconds parse_duration(std::string_view text, std::string_view what = "duration");

// 85899345920 → "80.0 GiB".
std::string format_bytes(uint64_t bytes);

// Sizes that a message compares, as format_bytes() writes them, but in bytes where different ones
// would look the same: "1048577 B" and "1048576 B".
Strings format_compared_bytes(const std::vector<uint64_t>& sizes);

// 83 s → "1m23s"; 0.25 s → "250ms".
std::string format_duration(std::chrono::nanoseconds duration);

// Seconds in the same form, to the millisecond; below 0 it is "0ms".
std::string format_seconds(double seconds);

// Seconds since 1970 → "2026-01-31 12:00:00", in this machine's time zone.
std::string format_local_time(int64_t seconds);

}  // namespace muster
