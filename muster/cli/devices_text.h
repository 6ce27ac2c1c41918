// A machine as tables for a terminal: what `muster devices` prints. Values and text; no I/O.
#pragma once

#include <map>
#include <string>

#include "muster/device/inventory.h"

namespace muster {

// Says in one line who holds a GPU or MIG instance, by its UUID.
using LeaseLines = std::map<std::string, std::string>;

struct DevicesTextOptions {
  bool leases = false;  // with the column "leased by"
  LeaseLines holders{};
};

// Shows of each host its GPUs with their MIG instances, how they are linked, and its CPU. What is
// not known is "-".
std::string devices_text(const Inventory& inventory, const DevicesTextOptions& options = {});

}  // namespace muster
