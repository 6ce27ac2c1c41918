// Numbers of the environment that count something: ranks, tasks, nodes, descriptors.
#pragma once

#include <cstdint>
#include <optional>

#include "muster/base/env.h"

namespace muster {

// The variable as such a number; nothing when unset or empty. Throws: invalid_argument naming the
// variable and its value when it is no integer, negative, or more than an int can hold.
inline std::optional<int> get_env_count(const char* name) {
  const auto value = get_env_int(name);
  if (!value)
    return std::nullopt;
  if (*value < 0 || *value > INT32_MAX) {
    throw invalid_argument("environment: expected a number from 0 to ",
                           INT32_MAX,
                           ", got ",
                           name,
                           "=",
                           *value,
                           "; correct or unset it");
  }
  return static_cast<int>(*value);
}

}  // namespace muster
