#include "muster/base/json_depth.h"

namespace muster {

bool nests_too_deep(std::string_view json) {
  constexpr int kMostLevels = 64;
  int level = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text && c == '\\') {
      ++i;  // what it escapes
    } else if (c == '"') {
      in_text = !in_text;
    } else if (!in_text && (c == '{' || c == '[')) {
      if (++level > kMostLevels)
        return true;
    } else if (!in_text && (c == '}' || c == ']')) {
      --level;
    }
  }
  return false;
}

}  // namespace muster
