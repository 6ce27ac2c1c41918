// `given` reads the text of a flag or setting that may have been left out. For the command line and
// for files of settings.
#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include "muster/base/clock.h"
#include "muster/base/units.h"

namespace muster {

// What `parse` makes of the text; nothing where it is empty.
template <class Parse>
std::optional<std::decay_t<std::invoke_result_t<Parse, const std::string&>>> given(
    const std::string& text, const Parse& parse) {
  if (text.empty())
    return std::nullopt;
  return parse(text);
}

// The duration that is the value of this flag.
inline std::optional<milliseconds> given_duration(const std::string& text, const char* flag) {
  return given(text, [&](const std::string& time) { return parse_duration(time, flag); });
}

}  // namespace muster
