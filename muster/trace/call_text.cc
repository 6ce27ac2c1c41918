#include "muster/trace/call_text.h"

#include <charconv>
#include <cstring>

#include "muster/base/strings.h"

namespace muster {

namespace {

// The bytes of the character at the beginning of `text`; 0 where none begins there.
size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80)
    return 1;
  const size_t length = first >= 0xc2 && first < 0xe0   ? 2
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xf0 && first < 0xf5 ? 4
                                                        : 0;
  if (length == 0 || text.size() < length)
    return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80)
      return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  const bool is_longer_than_needed =
      (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_no_character =
      (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return is_longer_than_needed || is_no_character ? 0 : length;
}

}  // namespace

void put_text(char* field, size_t size, const char* text) noexcept {
  const size_t length = ::strnlen(text, size - 1);
  std::memcpy(field, text, length);
  field[length] = '\0';
}

void put_shape(
    char* field, size_t size, const char* type, const int64_t* sizes, size_t dimensions) noexcept {
  constexpr const char kCut[] = "…]";
  const size_t type_length = ::strnlen(type, size);
  if (type_length == 0 || type_length + sizeof(kCut) + 1 > size)
    return put_text(field, size, type);
  std::memcpy(field, type, type_length);
  char* at = field + type_length;
  char* const limit = field + size - sizeof(kCut);  // what ends the text has room behind it
  *at++ = '[';
  for (size_t i = 0; i < dimensions; ++i) {
    char number[24];
    const char* const end = std::to_chars(number, number + sizeof(number), sizes[i]).ptr;
    const size_t length = static_cast<size_t>(end - number) + (i > 0 ? 2 : 0);
    if (at + length > limit) {
      std::memcpy(at, kCut, sizeof(kCut));
      return;
    }
    if (i > 0) {
      *at++ = ',';
      *at++ = ' ';
    }
    std::memcpy(at, number, static_cast<size_t>(end - number));
    at += end - number;
  }
  at[0] = ']';
  at[1] = '\0';
}

std::string readable(std::string_view field) {
  std::string text;
  while (!field.empty()) {
    const size_t length = character_length(field);
    if (length == 0)
      text += '?';
    text += field.substr(0, length);
    field.remove_prefix(length == 0 ? 1 : length);
  }
  return printable(text);
}

}  // namespace muster
