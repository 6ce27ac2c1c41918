// A line of a program's output as a person has seen it, for cards that quote it.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// Of a line that was drawn over, as a progress bar is, what stood there in the end; of a very long
// one its beginning.
std::string seen_line(std::string_view line);

}  // namespace muster
