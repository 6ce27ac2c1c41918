// One host from an hwloc topology, as `lstopo box.xml` writes it. Called by read_inventory.h; pure.
// Read here and not by hwloc's own importer, which trusts its files.
#pragma once

#include <string>

#include "muster/device/inventory.h"

namespace muster {

// CPU cores, GPUs (NVIDIA; AMD accelerators), InfiniBand and other RDMA NICs, their places, and the
// links between them: NVLink and xGMI from hwloc's bandwidth matrices, else how they meet in the
// PCI tree, in the words of `nvidia-smi topo -m`. Indices are NVML's or ROCm SMI's where the file
// has them for all, else PCI order. The host has the name that the file says, or else the file's,
// `source`. Throws: invalid_argument with the line, for what is not such a file. Source: hwloc 2.9
// manual, "Importing and exporting topologies from/to XML files", "I/O Devices", "Distances";
// hwloc2.dtd. Versions 1 to 3 of the format.
Host hwloc_xml_host(const std::string& text, const std::string& source);

}  // namespace muster
