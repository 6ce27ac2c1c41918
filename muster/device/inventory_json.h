// An Inventory as JSON, schema "muster.devices/1": what `muster devices --json` prints and what
// `--inventory FILE` reads back. Values and text; no I/O: read_inventory.h reads files.
#pragma once

#include <string>

#include "muster/device/inventory.h"

namespace muster {

// The whole inventory, indented, with a newline at the end.
std::string inventory_to_json(const Inventory& inventory);

// The inventory in `text`, as one that is simulated. `source`, a file's name, is named in errors
// and kept in Inventory::source. The text must have schema, hosts, each host's name, each GPU's
// index and model, and each healthy GPU's UUID; all else has the defaults of inventory.h. Throws:
// invalid_argument naming the member when one is missing, unknown, of another type or out of range,
// when a matrix of links does not fit the devices, and when two GPUs of a host share an index, a
// UUID or a PCI address, or two hosts a name.
Inventory inventory_from_json(const std::string& text, const std::string& source);

}  // namespace muster
