// What nlohmann::json says in an exception, without its name for the kind of error.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// "key 'at' not found" of "[json.exception.out_of_range.403] key 'at' not found"; "a JSON array for
// an object" of "… cannot use at() with array". Another text is as it was.
inline std::string json_words(std::string_view what) {
  const size_t end = what.find("] ");
  if (what.starts_with("[json.exception.") && end != std::string_view::npos)
    what.remove_prefix(end + 2);
  constexpr std::string_view kWith = "() with ";
  const size_t kind = what.find(kWith);
  if (what.starts_with("cannot use ") && kind != std::string_view::npos)
    return "a JSON " + std::string(what.substr(kind + kWith.size())) + " for an object";
  return std::string(what);
}

}  // namespace muster
