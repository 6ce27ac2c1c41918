// Text into the fixed fields of an activity file, without memory of its own and without locales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace muster {

// Writes as much of `text` as fits, and a zero behind it.
void put_text(char* field, size_t size, const char* text) noexcept;
template <size_t kSize>
void put_text(char (&field)[kSize], const char* text) noexcept {
  put_text(field, kSize, text);
}

// The text in a field, up to its zero or its end.
template <size_t kSize>
std::string_view text_in(const char (&field)[kSize]) {
  return {field, ::strnlen(field, kSize)};
}

// A field's text for people and JSON: control characters, and what is not UTF-8, as '?'.
std::string readable(std::string_view field);

// "f32[16, 1000]"; "f32[]" of a number, "" without a type. What does not fit ends in "…]".
void put_shape(
    char* field, size_t size, const char* type, const int64_t* sizes, size_t dimensions) noexcept;

}  // namespace muster
