// A line of a program's output as a person has seen it, for cards that quote it.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// A line that was drawn over, as a progress bar is, becomes what stood there in the end; a very
// long one becomes its beginning.
std::string seen_line(std::string_view line);

}  // namespace muster
