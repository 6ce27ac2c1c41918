// Links between devices of a host: their names and what they carry. The one table of bandwidths,
// for the topology policy and whoever draws a machine.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "muster/device/inventory.h"

namespace muster {

// A square of unknown links between `count` devices, with "self" on its diagonal.
LinkMatrix unknown_links(size_t count);

// The name that `nvidia-smi topo -m` gives a link: "X", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS";
// "XGMI4";
// "?" unknown.
std::string to_string(const Link& link);

// The link of such a name; nothing for other texts.
std::optional<Link> parse_link(std::string_view text);

// What the link between `a` and `b` carries in one direction. Units: GB/s (10^9 bytes). 0 when
// nothing is known. PCIe links carry what the slower of the two GPUs' slots does, less the further
// the way is.
double link_bandwidth(const Gpu& a, const Gpu& b, const Link& link);

// The generation of PCIe whose lanes have this speed, as "16.0 GT/s PCIe"; nothing for other texts.
std::optional<int> pcie_generation(std::string_view speed);

// The NVLink generation of a compute capability or, without one, of a model's name; 0 when it has
// none.
int nvlink_generation(const Gpu& gpu);

// The link from one GPU of the host to another, by their places there; null when it is not known.
const Link* gpu_link(const Host& host, size_t from, size_t to);

}  // namespace muster
