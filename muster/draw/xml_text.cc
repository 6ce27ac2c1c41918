// Text is read character by character, as UTF-8. A byte that begins no valid character counts as a
// character of its own and is shown as '?', so that any bytes give a picture that a reader of XML
// takes.
#include "muster/draw/xml_text.h"

#include <cstdint>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/utf8.h"

namespace muster {

namespace {

// A byte that begins no character stands for '?'.
Utf8Character shown_character(std::string_view text) {
  const Utf8Character character = first_character(text);
  return character.bytes > 0 ? character : Utf8Character{'?', 1};
}

struct CodeRange {
  uint32_t first;
  uint32_t last;
};

// Characters that XML forbids or that mislead a reader's eye.
constexpr CodeRange kHidden[] = {{0x0000, 0x001f},   // control characters
                                 {0x007f, 0x009f},   // more of them
                                 {0x061c, 0x061c},   // the Arabic mark of direction
                                 {0x200e, 0x200f},   // marks of direction
                                 {0x2028, 0x202e},   // ends of lines, embedded directions
                                 {0x2066, 0x2069}};  // isolated directions

bool may_be_shown(uint32_t code) {
  const bool is_noncharacter = (code & 0xfffe) == 0xfffe;  // U+FFFE, U+FFFF, U+1FFFE …
  return !is_noncharacter && none_of(kHidden, [&](const CodeRange& range) {
    return range.first <= code && code <= range.last;
  });
}

// Returns what stands for a character of XML's markup; empty for all others.
std::string_view markup_of(uint32_t code) {
  switch (code) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return {};
  }
}

int num_characters(std::string_view text) {
  int count = 0;
  for (; !text.empty(); ++count)
    text.remove_prefix(shown_character(text).bytes);
  return count;
}

}  // namespace

std::string xml_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Character character = shown_character(text);
    const std::string_view bytes = text.substr(0, character.bytes);
    text.remove_prefix(character.bytes);
    const std::string_view markup = markup_of(character.code);
    if (!markup.empty()) {
      out += markup;
    } else if (may_be_shown(character.code) && character.code != '?') {
      out += bytes;
    } else {
      out += '?';
    }
  }
  return out;
}

std::string fit_text(std::string_view text, size_t max_chars) {
  if (std::cmp_less_equal(num_characters(text), max_chars))
    return std::string(text);
  std::string out;
  for (size_t i = 0; i + 1 < max_chars; ++i) {
    const size_t bytes = shown_character(text).bytes;
    out += text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return out + "…";
}

// The average character of a sans-serif font is three fifths as wide as the font is high.
int text_width(std::string_view text, int font_size) {
  return num_characters(text) * font_size * 3 / 5 + 1;
}

size_t chars_in(int width, int font_size) {
  return width * 5 / (font_size * 3);
}

}  // namespace muster
