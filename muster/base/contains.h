// Whether a value is one of several: of a range, which std::ranges answers only from C++23 on, or
// of those listed. And any_of, all_of and none_of of a range, without their prefix.
#pragma once

#include <algorithm>
#include <functional>

namespace muster {

using std::ranges::all_of;
using std::ranges::any_of;
using std::ranges::none_of;

// Whether one of `items`, or its `projection`, equals `wanted`: as
// contains(hosts, name, &Host::name).
template <class Range, class T, class Projection = std::identity>
bool contains(const Range& items, const T& wanted, Projection projection = {}) {
  return any_of(items, [&](const auto& item) {
    return std::equal_to<>()(std::invoke(projection, item), wanted);
  });
}

// As is_one_of(kind, LinkKind::pix, LinkKind::pxb).
template <class T, class... Options>
constexpr bool is_one_of(const T& value, const Options&... options) {
  return ((value == options) || ...);
}

}  // namespace muster
