// Hosts from an NCCL topology: what NCCL_TOPO_DUMP_FILE wrote, or what a cloud gives for
// NCCL_TOPO_FILE. Called by read_inventory.h; pure.
#pragma once

#include <string>
#include <vector>

#include "muster/device/inventory.h"

namespace muster {

// GPUs, NICs, and the links between them: NVLink or xGMI where the file has them, else how they
// meet in the PCI tree, as NCCL names it (PIX, PXB, PHB; SYS between CPUs). GPUs have the index
// that the file gives all of them (`dev`), else that of their PCI order; models by their PCI ids;
// UUIDs are invented. Cores are the CPUs of the affinity masks. There are as many hosts as the file
// has host_hash; one is named after the file, `source`, several with a number behind it. Throws:
// invalid_argument with the line, for what is not such a file, and for hosts that cannot be told
// apart. Source: NCCL, "Environment Variables" (NCCL_TOPO_FILE) and graph/topo.h, graph/xml.h;
// RCCL, graph/xml.cc (gcn).
std::vector<Host> nccl_topology_hosts(const std::string& text, const std::string& source);

}  // namespace muster
