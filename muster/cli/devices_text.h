// A machine as tables for a terminal: what `muster devices` prints. Values and text; no I/O.
#pragma once

#include <string>

#include "muster/device/inventory.h"

namespace muster {

struct DevicesTextOptions {
  bool leases = false;  // with the column "leased by"
  StringMap holders{};  // in one line who holds a GPU or MIG instance, by its UUID
};

// Shows of each host its GPUs with their MIG instances, how they are linked, and its CPU. What is
// not known is "-".
std::string devices_text(const Inventory& inventory, const DevicesTextOptions& options = {});

}  // namespace muster
