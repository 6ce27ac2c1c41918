// `lookup` reads a table of keys and values that stands in a source. For every part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
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

}  // namespace muster
