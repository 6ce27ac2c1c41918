// How it works: a field has a fixed size and ends in a zero. Writing cuts what does not fit, and
// reading takes no byte of a field for what it says to be.
#include "muster/trace/call_text.h"

#include <charconv>
#include <cstring>

#include "muster/base/strings.h"
#include "muster/base/utf8.h"

namespace muster {

// A character may be cut in its middle; readable() shows the rest of it as '?'.
void put_text(char* field, size_t size, const char* text) noexcept {
  const size_t length = ::strnlen(text, size - 1);
  std::memcpy(field, text, length);
  field[length] = '\0';
}

// The sizes are put one after the other as long as there is room for one more and for the cut.
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
    char next[26] = ", ";
    char* const number = next + 2;
    const char* const end = std::to_chars(number, next + sizeof(next), sizes[i]).ptr;
    const char* const begin = i > 0 ? next : number;
    const size_t length = end - begin;
    if (at + length > limit) {
      std::memcpy(at, kCut, sizeof(kCut));
      return;
    }
    std::memcpy(at, begin, length);
    at += length;
  }
  at[0] = ']';
  at[1] = '\0';
}

// Each byte that begins no character becomes a '?' of its own.
std::string readable(std::string_view field) {
  std::string text;
  while (!field.empty()) {
    const size_t length = utf8_bytes(field);
    if (length == 0)
      text += '?';
    text += field.substr(0, length);
    field.remove_prefix(length == 0 ? 1 : length);
  }
  return printable(text);
}

}  // namespace muster
