#include <cstdlib>

#include "muster/base/toml_text.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_toml(const std::string& text) {
  try {
    parse_toml(text);
  } catch (const TomlError& error) {
    if (error.line < 1 || error.expected.empty())
      std::abort();
  }
}

}  // namespace muster
