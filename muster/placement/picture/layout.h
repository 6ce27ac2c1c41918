// The places of a host's parts in a picture: sockets around NUMA nodes around PCIe groups around
// devices, all GPUs in one row. For draw_svg.cc; a private header. It is pure, and knows nothing of
// colours or text but their sizes.
#pragma once

#include <optional>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/draw/svg_canvas.h"

namespace muster {

struct NicPlace {
  size_t nic = 0;  // in Host::nics
  SvgBox box{};
};

struct GpuPlace {
  size_t gpu = 0;  // in Host::gpus
  SvgBox box{};
};

// Devices below the same PCIe switches. One GPU alone has a group, which is not drawn.
struct PciGroup {
  std::vector<GpuPlace> gpus{};
  std::vector<NicPlace> nics{};
  bool several_switches = false;
  SvgBox box{};
  bool drawn() const { return gpus.size() + nics.size() > 1; }
};

struct CorePlace {
  size_t core = 0;  // in Host::cores
  SvgBox box{};
};

struct NodePlace {
  std::optional<int> numa_node{};
  std::optional<int> socket{};
  std::vector<CorePlace> cores{};
  std::vector<NicPlace> nics{};  // near no GPU
  std::vector<PciGroup> groups{};
  SvgBox box{};
};

struct SocketPlace {
  int socket = 0;
  SvgBox box{};
};

struct HostLayout {
  std::vector<SocketPlace> sockets{};
  std::vector<NodePlace> nodes{};
  std::vector<GpuPlace> gpus{};  // all of them, from left to right
  SvgBox box{};                  // around all
};

// `chip_rows`: lines of ranks that every GPU's box has room for.
HostLayout lay_out_host(const Host& host, int x, int y, int chip_rows);

}  // namespace muster
