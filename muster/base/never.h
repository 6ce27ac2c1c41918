// For a class template that says what it takes: a specialisation for all other types has a
// static_assert of this, whose text is all that the compiler then prints.
#pragma once

namespace muster {

template <class...>
inline constexpr bool kNever = false;

}  // namespace muster
