// What nlohmann::json says in an exception, without its name for the kind of error.
#pragma once

#include <string>
#include <string_view>

#include "muster/base/strings.h"

namespace muster {

// "key 'at' not found" of "[json.exception.out_of_range.403] key 'at' not found"; "a JSON array for
// an object" of "… cannot use at() with array", which is said of what is no object. Another text is
// as it was.
inline std::string json_words(std::string_view what) {
  const size_t end = what.find("] ");
  if (what.starts_with("[json.exception.") && end != npos)
    what.remove_prefix(end + 2);
  for (const std::string_view start : {"cannot use at() with ", "cannot use value() with "}) {
    if (what.starts_with(start) && !what.ends_with(" object"))
      return "a JSON " + std::string(what.substr(start.size())) + " for an object";
  }
  return std::string(what);
}

}  // namespace muster
