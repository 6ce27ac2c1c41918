// What values of flags must be, for CLI11's `check`: each returns what is wrong, empty when nothing is. CLI11
// puts the flag's name before it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace muster {

using FlagCheck = std::function<std::string(const std::string&)>;

// An empty value is a shell variable that was not set, never a wish. `expected`: "a folder".
FlagCheck not_empty(const std::string& expected);

// A decimal number; `most` is what its type holds.
FlagCheck whole_number_from(int64_t least, int64_t most = std::numeric_limits<int>::max());

}  // namespace muster
