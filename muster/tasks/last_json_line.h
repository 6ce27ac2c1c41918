// The result that a task printed. For the runner, when a task has ended; knows only the file.
#pragma once

#include <cstddef>
#include <string>

namespace muster {

inline constexpr size_t kLastJsonBytes = size_t{1} << 20;

// The last line of the file that is a JSON object, as it stands there, but for NaN, Infinity and -Infinity,
// which Python's json writes and JSON does not have: these become texts ("NaN"). Empty when there is none in
// the last `max_bytes`. A line that begins before those is not looked at; the last line needs no end.
// Blocking: reads at most `max_bytes`. Throws: io naming the path.
std::string last_json_line(const std::string& path, size_t max_bytes = kLastJsonBytes);

// The same of a text that is there already.
std::string last_json_line_of(const std::string& text);

// "loss is NaN" for the first field of a JSON object that is no finite number: one of the texts above, or as
// programs print them ("nan", "-inf"). Empty: there is none.
std::string not_finite_field(const std::string& json_line);

}  // namespace muster
