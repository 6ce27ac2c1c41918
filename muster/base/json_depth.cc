// How it works: brackets outside of strings are counted. Whether the text is JSON at all is the
// parser's affair.
#include "muster/base/json_depth.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr int kMostLevels = 64;

// The place after the string whose quotes open at `at`.
size_t end_of_json_string(std::string_view json, size_t at) {
  for (++at; at < json.size() && json[at] != '"'; ++at) {
    if (json[at] == '\\')
      ++at;  // and the character that it escapes
  }
  return std::min(at + 1, json.size());
}

}  // namespace

bool nests_too_deep(std::string_view json) {
  int level = 0;
  for (size_t at = 0; at < json.size();) {
    switch (json[at]) {
      case '"':
        at = end_of_json_string(json, at);
        continue;
      case '{':
      case '[':
        ++level;
        break;
      case '}':
      case ']':
        --level;
        break;
      default:
        break;
    }
    if (level > kMostLevels)
      return true;
    ++at;
  }
  return false;
}

void check_json_depth(std::string_view json, const char* what) {
  if (nests_too_deep(json))
    throw invalid_argument(
        what, ": expected JSON that nests at most ", kMostLevels, " deep, got more");
}

}  // namespace muster
