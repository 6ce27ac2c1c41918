// What a task's name may be: its folder of logs has the same. Header-only.
#pragma once

#include <cstddef>

namespace muster {

inline constexpr size_t kMaxTaskName = 200;  // bytes

// Whether a file's name may have the character: no slash and no control character.
inline bool fits_file_name(char c) {
  const bool is_control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  return c != '/' && !is_control;
}

}  // namespace muster
