// The question that std::ranges answers only from C++23 on.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <iterator>

namespace muster {

// Whether one of `items` equals `wanted`.
template <class Range, class T>
bool contains(const Range& items, const T& wanted) {
  return std::find(std::begin(items), std::end(items), wanted) != std::end(items);
}

// As contains({EMFILE, ENFILE}, errno).
template <class T>
bool contains(std::initializer_list<T> items, const T& wanted) {
  return std::find(items.begin(), items.end(), wanted) != items.end();
}

}  // namespace muster
