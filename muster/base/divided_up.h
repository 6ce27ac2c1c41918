// Whole numbers that are divided and rounded up. None is negative.
#pragma once

#include <type_traits>

namespace muster {

template <class Number>
constexpr Number divided_up(Number total, std::type_identity_t<Number> parts) {
  return (total + parts - 1) / parts;
}

// Returns the first multiple of `step` that is not below the value.
template <class Number>
constexpr Number rounded_up(Number value, std::type_identity_t<Number> step) {
  return divided_up(value, step) * step;
}

}  // namespace muster
