// The characters of a text in UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster {

// Whether the byte is one of a character's later ones.
inline bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U;
}

// The number of bytes that a character has, from its first one; 0 when no character begins so.
inline size_t utf8_bytes_after(unsigned char first) {
  if (first < 0x80)
    return 1;
  if (first < 0xc2 || first > 0xf4)
    return 0;
  if (first < 0xe0)
    return 2;
  return first < 0xf0 ? 3 : 4;
}

// The number of bytes of the first character; 0 when the text is empty or does not begin with one.
// Numbers that are written longer than needed, surrogates, and what is above U+10FFFF are none.
inline size_t utf8_bytes(std::string_view text) {
  if (text.empty())
    return 0;
  const unsigned char first = text[0];
  const size_t bytes = utf8_bytes_after(first);
  if (bytes == 1)
    return 1;
  if (bytes == 0 || text.size() < bytes)
    return 0;
  uint32_t code = first & (0x7fU >> bytes);
  for (const char c : text.substr(1, bytes - 1)) {
    if (!continues_character(c))
      return 0;
    code = (code << 6U) | (static_cast<unsigned char>(c) & 0x3fU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool is_in_range = code >= kLeast[bytes] && code <= 0x10ffff;
  return is_in_range && !is_surrogate ? bytes : 0;
}

}  // namespace muster
