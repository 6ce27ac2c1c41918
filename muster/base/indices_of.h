// The numbers 0, 1, …: those below a count, as for (const int rank : indices_below(ranks)), and
// those by which a range's elements are reached, as for (const size_t i : indices_of(gpus)).
#pragma once

#include <algorithm>
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

// None, where the count is not above 0.
template <class Count>
auto indices_below(Count count) {
  return std::views::iota(Count{}, std::max(count, Count{}));
}

}  // namespace muster
