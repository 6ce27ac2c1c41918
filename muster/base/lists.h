// Short names of lists that every part has, and a list of numbers. Strings is in strings.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

namespace muster {

using Ints = std::vector<int>;
using Int64s = std::vector<int64_t>;
using Doubles = std::vector<double>;
using Indices = std::vector<size_t>;  // numbers of another list's elements
using IntSet = std::set<int>;
using IndexSet = std::set<size_t>;

// 0, 1, and so on until `count`: Ints of an int, Indices of a size.
template <class Number>
std::vector<Number> numbers_below(Number count) {
  std::vector<Number> numbers(count);
  std::iota(numbers.begin(), numbers.end(), Number{});
  return numbers;
}

}  // namespace muster
