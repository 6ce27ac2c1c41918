// Bytes and numbers as hexadecimal digits, in lower case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

inline constexpr std::string_view kHexDigits = "0123456789abcdef";

// Two digits a byte.
inline std::string to_hex(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kHexDigits[byte >> 4U];
    text += kHexDigits[byte & 15U];
  }
  return text;
}

// The last `digits` digits of the number.
inline std::string to_hex(uint64_t value, size_t digits) {
  std::string text(digits, '0');
  for (size_t i = digits; i-- > 0; value >>= 4U)
    text[i] = kHexDigits[value & 15U];
  return text;
}

// Sixteen bytes as a UUID: "4f2a6c1e-...".
inline std::string uuid_text(std::string_view bytes) {
  std::string text = to_hex(bytes);
  for (const size_t at : {20, 16, 12, 8})
    text.insert(at, 1, '-');
  return text;
}

// The text with every byte that is not printable ASCII as \xNN, and "..." for what comes after
// `most` bytes.
inline std::string escaped(std::string_view text, size_t most = 40) {
  std::string out;
  for (const char c : text.substr(0, most)) {
    const bool is_printable = c >= 0x20 && c < 0x7f;
    out += is_printable ? std::string(1, c) : "\\x" + to_hex(std::string_view(&c, 1));
  }
  return text.size() > most ? out + "..." : out;
}

}  // namespace muster
