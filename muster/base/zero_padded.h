// A number's digits with zeros before them. For names that are counted up, as shells do: 08,
// 09, 10.
#pragma once

#include <string>

namespace muster {

// At least `width` characters; the zeros stand behind a sign.
inline std::string zero_padded(std::string digits, size_t width) {
  const size_t sign = digits.starts_with('-') ? 1 : 0;
  if (digits.size() < width)
    digits.insert(sign, width - digits.size(), '0');
  return digits;
}

}  // namespace muster
