// The fields of a plain struct (an aggregate without a base), one by one. Used by collate.h, which
// collates a struct's tensors without knowing their names.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace muster {

namespace fields {

struct Anything {
  template <class T>
  operator T()
      const;  // NOLINT(google-explicit-constructor): stands for a field's value, never called
};

template <size_t>
using AnythingAt = Anything;

template <class T, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{AnythingAt<I>{}...}; };
}

inline constexpr size_t kMost = 10;

template <class T, size_t N = kMost>
constexpr size_t count() {
  if constexpr (N == 0 || takes<T>(std::make_index_sequence<N>{})) {
    return N;
  } else {
    return count<T, N - 1>();
  }
}

}  // namespace fields

// A plain struct with 1 to 10 fields.
template <class T>
concept PlainStruct = std::is_class_v<T> && std::is_aggregate_v<T> && (fields::count<T>() > 0);

// References to its fields, in their order.
template <PlainStruct T>
auto fields_of(T& value) {
  constexpr size_t n = fields::count<std::remove_const_t<T>>();
  if constexpr (n == 1) {
    auto& [a] = value;
    return std::tie(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = value;
    return std::tie(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = value;
    return std::tie(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = value;
    return std::tie(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = value;
    return std::tie(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, f] = value;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (n == 8) {
    auto& [a, b, c, d, e, f, g, h] = value;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (n == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = value;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else {
    auto& [a, b, c, d, e, f, g, h, i, j] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  }
}

}  // namespace muster
