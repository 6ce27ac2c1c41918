// The characters of a text in UTF-8.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster {

// Whether the byte is one of a character's later ones.
inline bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U;
}

// The text's characters; what is no UTF-8 counts somehow.
inline int count_characters(std::string_view text) {
  int count = 0;
  for (const char c : text)
    count += continues_character(c) ? 0 : 1;
  return count;
}

// At most the first `max_bytes`, without a character that would be cut.
inline std::string_view cut_text(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes)
    return text;
  while (max_bytes > 0 && continues_character(text[max_bytes]))
    --max_bytes;
  return text.substr(0, max_bytes);
}

struct Utf8Character {
  uint32_t code = 0;
  size_t bytes = 0;
};

// The first character; one of 0 bytes when the text is empty or does not begin with one. Numbers
// that are written longer than needed, surrogates, and what is above U+10FFFF are none.
inline Utf8Character first_character(std::string_view text) {
  if (text.empty())
    return {};
  const unsigned char first = text[0];
  if (first < 0x80)
    return {first, 1};
  const size_t bytes = std::countl_one(first);
  if (bytes < 2 || bytes > 4 || text.size() < bytes)
    return {};
  uint32_t code = first & (0x7fU >> bytes);
  for (const char c : text.substr(1, bytes - 1)) {
    if (!continues_character(c))
      return {};
    code = (code << 6U) | (static_cast<unsigned char>(c) & 0x3fU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (is_surrogate || code < kLeast[bytes] || code > 0x10ffff)
    return {};
  return {code, bytes};
}

// The number of the first character's bytes; 0 as above.
inline size_t utf8_bytes(std::string_view text) {
  return first_character(text).bytes;
}

}  // namespace muster
