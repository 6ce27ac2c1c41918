// "1..5" as the values that it stands for. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "muster/base/strings.h"

namespace muster {

// "1..3" is 1, 2 and 3, "08..10" is 08, 09 and 10; any other text than two whole numbers with ".."
// between them is no range. Throws: invalid_argument for a range that does not count up, or to more
// than kMaxTasks values.
std::optional<Strings> range_values(std::string_view text);

}  // namespace muster
