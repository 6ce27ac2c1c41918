// How deep a JSON text may nest that comes from a file or from a program, and the reader of such
// texts.
#pragma once

#include <string_view>

namespace muster {

// Whether it nests deeper than 64 levels. nlohmann::json copies and writes values by recursion, so
// such a text could overflow the stack, and nothing that muster reads is one. To be asked before
// the text is parsed.
bool nests_too_deep(std::string_view json);

// What the text says; discarded, and so neither an object nor another value, where it is no JSON or
// nests too deep.
template <class Json>
Json parsed_json(std::string_view text) {
  if (nests_too_deep(text))
    return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// Throws: invalid_argument that begins with `what`, if it does.
void check_json_depth(std::string_view json, const char* what);

}  // namespace muster
