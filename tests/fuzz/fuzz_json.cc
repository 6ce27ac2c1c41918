#include "muster/device/inventory_json.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_json(const std::string& text) {
  answer_or_error([&] { check_inventory(inventory_from_json(text, "fuzz")); });
}

}  // namespace muster
