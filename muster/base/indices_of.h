// The numbers 0, 1, … by which a range's elements are reached: for (const size_t i :
// indices_of(gpus)). For loops over several ranges at once.
#pragma once

#include <cstddef>
#include <iterator>
#include <ranges>

namespace muster {

// The range must keep its size while the loop runs.
auto indices_of(const auto& range) {
  return std::views::iota(size_t{0}, size_t{std::size(range)});
}

// The same as ints, which number hosts, GPUs and ranks.
auto int_indices_of(const auto& range) {
  return std::views::iota(0, static_cast<int>(std::size(range)));
}

// 0, 1, and so on until `count`.
template <class Count>
auto indices_below(Count count) {
  return std::views::iota(Count{}, count);
}

}  // namespace muster
