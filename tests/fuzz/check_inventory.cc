#include <cstdio>
#include <cstdlib>

#include "muster/device/inventory_json.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void check_inventory(const Inventory& inventory) {
  const std::string json = inventory_to_json(inventory);
  try {
    if (inventory_from_json(json, inventory.source).hosts == inventory.hosts)
      return;
    std::fputs("another inventory came back from JSON:\n", stderr);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::fputs(json.c_str(), stderr);
  std::abort();
}

}  // namespace muster
