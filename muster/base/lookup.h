// `lookup` reads a table of keys and values that stands in a source, `find_or` and `value_at` a
// map; `element_with`, `element_where` and `index_with` look through any range. For every part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <type_traits>
#include <utility>

namespace muster {

// The value of the first row with this key; `otherwise` where there is none.
template <class Key, class Value, size_t N>
constexpr Value lookup(const std::pair<Key, Value> (&table)[N],
                       const std::type_identity_t<Key>& key,
                       std::type_identity_t<Value> otherwise) {
  const auto row = std::ranges::find(table, key, &std::pair<Key, Value>::first);
  return row == std::end(table) ? otherwise : row->second;
}

// The value at this key of a map; `otherwise` where there is none.
template <class Map, class Key>
typename Map::mapped_type find_or(const Map& map,
                                  const Key& key,
                                  typename Map::mapped_type otherwise = {}) {
  const auto found = map.find(key);
  return found == map.end() ? std::move(otherwise) : found->second;
}

// The value at this key of a map, or nullptr. The map outlives the answer.
template <class Map, class Key>
auto value_at(Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

// The first element that holds `predicate`, or nullptr. The range outlives the answer.
template <class Range, class Predicate>
auto element_where(Range& range, Predicate predicate) {
  const auto found = std::ranges::find_if(range, predicate);
  return found == std::ranges::end(range) ? nullptr : std::to_address(found);
}

// The place of the first element whose `projection` is `value`, or nothing.
template <class Range, class Value, class Projection = std::identity>
std::optional<int> index_with(const Range& range, const Value& value, Projection projection = {}) {
  const auto found = std::ranges::find(range, value, projection);
  if (found == std::ranges::end(range))
    return std::nullopt;
  return static_cast<int>(found - std::ranges::begin(range));
}

// The first element whose `projection` is `value`, or nullptr.
template <class Range, class Value, class Projection = std::identity>
auto element_with(Range& range, const Value& value, Projection projection = {}) {
  const auto found = std::ranges::find(range, value, projection);
  return found == std::ranges::end(range) ? nullptr : std::to_address(found);
}

}  // namespace muster
