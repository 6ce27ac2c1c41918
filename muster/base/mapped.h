// `mapped` makes a vector of what a function says of each element of a range. For every part.
#pragma once

#include <functional>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster {

// As mapped(hosts, &Host::name). `function` is anything that can be called with an element: a
// function, a lambda, or a pointer to a member.
template <class Range, class Function>
auto mapped(Range&& range, Function function) {
  using Element = decltype(*std::begin(range));
  std::vector<std::decay_t<std::invoke_result_t<Function&, Element>>> results;
  for (auto&& element : range)
    results.push_back(std::invoke(function, std::forward<decltype(element)>(element)));
  return results;
}

}  // namespace muster
