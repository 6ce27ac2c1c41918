// The result that a task printed. For the runner, when a task has ended; knows only the file.
#pragma once

#include <cstddef>
#include <string>

namespace muster {

inline constexpr size_t kLastJsonBytes = size_t{1} << 20;

// The last line of the file that is a JSON object, as it stands there; empty when there is none in the last
// `max_bytes`. A line that begins before those is not looked at; the last line needs no end. Blocking: reads
// at most `max_bytes`. Throws: io naming the path.
std::string last_json_line(const std::string& path, size_t max_bytes = kLastJsonBytes);

// The same of a text that is there already.
std::string last_json_line_of(const std::string& text);

}  // namespace muster
