// The question that std::ranges answers only from C++23 on.
#pragma once

#include <algorithm>
#include <iterator>

namespace muster {

// Whether one of `items` equals `wanted`.
template <class Range, class T>
bool contains(const Range& items, const T& wanted) {
  return std::find(std::begin(items), std::end(items), wanted) != std::end(items);
}

}  // namespace muster
