// The result that a task printed. For the runner, when a task has ended; knows only the file.
#pragma once

#include <cstddef>
#include <string>

#include "muster/base/strings.h"

namespace muster {

inline constexpr size_t kLastJsonBytes = size_t{1} << 20;

// The last line of the file that is a JSON object, as it stands there. JSON has no NaN and no
// infinities, but programs print them (Python as NaN and Infinity, C++ as nan and inf, Go as +Inf),
// and numbers that no double can hold (1e400): these become the texts "NaN", "Infinity" and
// "-Infinity". A whole number of more than 64 bits becomes a text of its digits, and a byte that is
// no character of UTF-8 becomes U+FFFD. Empty when there is none in the last `max_bytes`. A line
// that begins before those is not looked at; the last line needs no end. Blocking: reads at most
// `max_bytes`. Throws: io naming the path.
std::string last_json_line(const std::string& path, size_t max_bytes = kLastJsonBytes);

// The last such line of a text.
std::string last_json_line_of(const std::string& text);

// "loss is NaN" for the first value in a JSON object, at any depth, that is one of the texts above,
// and none of the task's parameters, which a result may repeat. Empty: there is none.
std::string not_finite_field(const std::string& json_line, const StringMap& parameters = {});

}  // namespace muster
