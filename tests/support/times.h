// How often a text stands in another, for tests of what is said once.
#pragma once

#include <cstddef>
#include <string>

namespace muster::testing {

inline size_t times(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

}  // namespace muster::testing
