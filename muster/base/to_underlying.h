// The number of an enum's value, as the std::to_underlying() of C++23.
#pragma once

#include <type_traits>

namespace muster {

template <class Enum>
constexpr std::underlying_type_t<Enum> to_underlying(Enum value) {
  return static_cast<std::underlying_type_t<Enum>>(value);
}

}  // namespace muster
