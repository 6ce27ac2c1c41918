// The text for something that may not be there, or of which there may be several. For tables and
// sentences of every part.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <string_view>

#include "muster/base/strings.h"

namespace muster {

// The text between two others, as framed(" (", name, ")"); nothing where it is empty.
inline std::string framed(std::string_view before,
                          std::string_view text,
                          std::string_view after = "") {
  if (text.empty())
    return {};
  return cat(before, text, after);
}

inline std::string text_or(const std::string& text, const std::string& otherwise) {
  return text.empty() ? otherwise : text;
}

template <class T>
std::string text_of(const std::optional<T>& value, std::string_view otherwise = "") {
  return value ? cat(*value) : std::string(otherwise);
}

// A count above 0, or `otherwise`.
inline std::string text_of_count(std::integral auto count, std::string_view otherwise = "") {
  return count > 0 ? cat(count) : std::string(otherwise);
}

// The form of a word for so many: word_for(1, "is", "are").
constexpr const char* word_for(std::integral auto count, const char* one, const char* several) {
  return count == 1 ? one : several;
}

}  // namespace muster
