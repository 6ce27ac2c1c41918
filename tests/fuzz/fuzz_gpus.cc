#include "muster/placement/selection/selection.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_gpus(const std::string& text) {
  answer_or_error([&] { Selection{std::string(text)}; });
}

}  // namespace muster
