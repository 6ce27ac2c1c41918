// Reading environment variables. The names that make up the launcher's contract with a rank are in
// rank_env.h.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

// The variable's value; nothing when unset or empty.
inline std::optional<std::string> get_env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0')
    return std::nullopt;
  return std::string(value);
}

// The variable as an integer; nothing when unset or empty.
// Throws: invalid_argument naming the variable and its value when it is no integer.
inline std::optional<int64_t> get_env_int(const char* name) {
  const auto text = get_env(name);
  if (!text)
    return std::nullopt;
  const auto value = parse_int(trim(*text));
  if (!value) {
    throw invalid_argument(
        "environment: expected an integer in ", name, ", got '", *text, "'; correct or unset it");
  }
  return value;
}

}  // namespace muster
