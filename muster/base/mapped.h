// `mapped` makes a vector of what a function says of each element of a range; its siblings make
// another container, a sum, a maximum, or a selection. For every part.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster {

// As mapped_to<std::set<std::string>>(hosts, &Host::name). `function` is anything that can be
// called with an element: a function, a lambda, or a pointer to a member.
template <class Container, class Range, class Function>
Container mapped_to(Range&& range, Function function) {
  Container results;
  if constexpr (requires { results.reserve(std::size(range)); })
    results.reserve(std::size(range));
  for (auto&& element : range)
    results.insert(results.end(), std::invoke(function, std::forward<decltype(element)>(element)));
  return results;
}

// As mapped(hosts, &Host::name).
template <class Range, class Function>
auto mapped(Range&& range, Function function) {
  using Element = decltype(*std::begin(range));
  using Result = std::decay_t<std::invoke_result_t<Function&, Element>>;
  return mapped_to<std::vector<Result>>(std::forward<Range>(range), std::move(function));
}

// What a function says of 0, 1, and so on until `count`.
template <class Count, class Function>
auto mapped_indices(Count count, Function function) {
  std::vector<std::decay_t<std::invoke_result_t<Function&, Count>>> results;
  results.reserve(count);
  for (Count i = 0; i < count; ++i)
    results.push_back(std::invoke(function, i));
  return results;
}

// The sum of what a function says of each element, as sum_of<std::string>(lines, to_text).
template <class Sum, class Range, class Function>
Sum sum_of(const Range& range, Function function) {
  Sum sum{};
  for (const auto& element : range)
    sum += std::invoke(function, element);
  return sum;
}

// The sum of numbers, as sum_of(shares).
template <class Range>
auto sum_of(const Range& numbers) {
  return sum_of<std::decay_t<decltype(*std::begin(numbers))>>(numbers, std::identity());
}

// The greatest of what a function says of the elements, or `least`, as max_of<int>(hosts,
// &Host::num_cores).
template <class Value, class Range, class Function>
Value max_of(const Range& range, Function function, Value least = {}) {
  for (const auto& element : range)
    least = std::max<Value>(least, std::invoke(function, element));
  return least;
}

// Copies of the elements of which `is_wanted` is true, in their order.
template <class Range, class Predicate>
auto filtered(const Range& range, Predicate is_wanted) {
  std::vector<std::decay_t<decltype(*std::begin(range))>> wanted;
  for (const auto& element : range) {
    if (std::invoke(is_wanted, element))
      wanted.push_back(element);
  }
  return wanted;
}

// Those of 0, 1, and so on until `count` of which `is_wanted` is true.
template <class Index, class Predicate>
std::vector<Index> filtered_indices(Index count, Predicate is_wanted) {
  std::vector<Index> wanted;
  for (Index i = 0; i < count; ++i) {
    if (is_wanted(i))
      wanted.push_back(i);
  }
  return wanted;
}

// What `function` says of each element of which it says something: it returns an optional value.
template <class Range, class Function>
auto mapped_some(Range&& range, Function function) {
  using Element = decltype(*std::begin(range));
  std::vector<typename std::invoke_result_t<Function&, Element>::value_type> results;
  for (auto&& element : range) {
    if (auto result = std::invoke(function, std::forward<decltype(element)>(element)))
      results.push_back(*std::move(result));
  }
  return results;
}

// What a function says of each element, each answer once, in the order of their firsts.
template <class Range, class Function = std::identity>
auto distinct(Range&& range, Function function = {}) {
  auto all = mapped(std::forward<Range>(range), std::move(function));
  decltype(all) once;
  std::set<typename decltype(all)::value_type> seen;
  for (auto& each : all) {
    if (seen.insert(each).second)
      once.push_back(std::move(each));
  }
  return once;
}

// Adds the elements of `more` at the end of the list.
template <class List, class Range>
void append_all(List& to, const Range& more) {
  to.insert(to.end(), std::begin(more), std::end(more));
}

// Adds what a function says of each element to a vector, a list in JSON or another container.
template <class Container, class Range, class Function>
void append_mapped(Container& container, Range&& range, Function function) {
  for (auto&& element : range)
    container.push_back(std::invoke(function, std::forward<decltype(element)>(element)));
}

// The lists that `function` says of each element, one behind the other.
template <class Range, class Function>
auto concatenated(Range&& range, Function function) {
  using Element = decltype(*std::begin(range));
  std::decay_t<std::invoke_result_t<Function&, Element>> all;
  for (auto&& element : range)
    append_all(all, std::invoke(function, element));
  return all;
}

}  // namespace muster
