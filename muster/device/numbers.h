// Whole numbers as probes and readers need them: out of text that anybody may have written, and out
// of sizes. A private header.
#pragma once

#include <charconv>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "muster/base/strings.h"

namespace muster {

// The greatest number of a CPU, a NUMA node or a GPU that is believed.
inline constexpr int kMaxNumber = 65535;

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The whole text as a hexadecimal number of 32 bits, without "0x" before it.
inline std::optional<uint32_t> parse_hex(std::string_view text) {
  return parse_as<uint32_t>(text, 16);
}

// The number that the text begins with, as 16 of "16 GT/s", in whatever locale a program has set; 0
// where it begins with none.
inline double number_before_text(std::string_view text) {
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// The number of a range's elements, for ranges that are far shorter than an int can count.
constexpr int int_size(const auto& range) {
  return static_cast<int>(std::ssize(range));
}

}  // namespace muster
