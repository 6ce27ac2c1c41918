// An Inventory from a file of any kind that is understood: `--inventory`. Called by the launcher
// and by `muster devices`.
#pragma once

#include <string>

#include "muster/device/inventory.h"

namespace muster {

// The machines in the file at `path`, as simulated ones. What it is, its content tells, not its
// name: `muster devices --json`; `nvidia-smi -q -x`; `nvidia-smi topo -m`; an NCCL topology XML; an
// hwloc XML; or a fleet file (readers/fleet_toml.h). A folder: all its files, in the order of their
// names. At most 64 MiB a file. Lines that a program wrote above XML, such as a warning, become a
// note. Blocking: until a pipe ends. Throws: io; invalid_argument naming the file and the place in
// it.
Inventory read_inventory(const std::string& path);

// The same of text; `source` is the file's name, in errors, for hosts that have none, and as the
// place from which a fleet file's own files are found. A fleet file reads those files.
Inventory parse_inventory(const std::string& text, const std::string& source);

}  // namespace muster
