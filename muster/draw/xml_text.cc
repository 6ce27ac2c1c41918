#include "muster/draw/xml_text.h"

#include <cstdint>

namespace muster {

namespace {

struct Character {
  uint32_t code = '?';
  size_t bytes = 1;
};

// The character at the beginning of `text`, which is not empty; '?' of one byte for what is no
// UTF-8.
Character first_character(std::string_view text) {
  const auto byte = [&](size_t at) {
    return static_cast<unsigned char>(text[at]);
  };
  if (byte(0) < 0x80)
    return {byte(0), 1};
  constexpr uint32_t kLeast[] = {
      0, 0, 0x80, 0x800, 0x10000};  // shorter forms of a code are not allowed
  const size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes)
    return {};
  uint32_t code = byte(0) & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80)
      return {};
    code = (code << 6) | (byte(i) & 0x3f);
  }
  if (code < kLeast[bytes] || code > 0x10ffff)
    return {};
  return {code, bytes};
}

bool may_be_shown(uint32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0))
    return false;
  if (code >= 0xd800 && code <= 0xdfff)
    return false;
  if ((code & 0xfffe) == 0xfffe)
    return false;
  if (code == 0x200e || code == 0x200f || code == 0x61c)
    return false;  // marks of direction
  return !(code >= 0x2028 && code <= 0x202e) && !(code >= 0x2066 && code <= 0x2069);
}

size_t num_characters(std::string_view text) {
  size_t count = 0;
  for (; !text.empty(); ++count)
    text.remove_prefix(first_character(text).bytes);
  return count;
}

}  // namespace

std::string xml_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::string_view bytes = text.substr(0, character.bytes);
    text.remove_prefix(character.bytes);
    switch (character.code) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default: {
        const bool shown =
            may_be_shown(character.code) && !(character.bytes == 1 && character.code == '?');
        out += shown ? bytes : std::string_view("?");
      }
    }
  }
  return out;
}

std::string fit_text(std::string_view text, size_t max_chars) {
  if (num_characters(text) <= max_chars)
    return std::string(text);
  std::string out;
  for (size_t i = 0; i + 1 < max_chars; ++i) {
    const size_t bytes = first_character(text).bytes;
    out += text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return out + "…";
}

int text_width(std::string_view text, int font_size) {
  return static_cast<int>(num_characters(text)) * font_size * 3 / 5 + 1;
}

size_t chars_in(int width, int font_size) {
  return static_cast<size_t>(width * 5 / (font_size * 3));
}

}  // namespace muster
