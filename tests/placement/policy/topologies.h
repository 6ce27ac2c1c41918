// Hosts with links between their GPUs, for the tests of placement/. Written from published facts;
// what is not published is invented and says so.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/strings.h"
#include "muster/device/links.h"
#include "tests/placement/machines.h"

namespace muster {

// Rows as `nvidia-smi topo -m` prints them, blanks between.
inline std::vector<std::vector<Link>> link_matrix(const std::vector<std::string>& rows) {
  std::vector<std::vector<Link>> links;
  for (const std::string& row : rows) {
    auto& cells = links.emplace_back();
    for (const std::string& cell : split(row, ' ')) {
      if (!cell.empty())
        cells.push_back(parse_link(cell).value());
    }
  }
  return links;
}

inline Host linked_host(const std::string& model, const std::vector<std::string>& rows) {
  Host host = gpu_host(0, static_cast<int>(rows.size()), model);
  host.gpu_links = link_matrix(rows);
  return host;
}

// Eight V100, six NVLinks each: a hybrid cube mesh. Source: NVIDIA, "DGX-1 With Tesla V100 System
// Architecture" (WP-08437), figure of the hybrid mesh cube; links as `nvidia-smi topo -m` counts
// them.
inline Host dgx1() {
  Host host = linked_host("Tesla V100-SXM2-32GB",
                          {"X NV1 NV1 NV2 NV2 SYS SYS SYS",  //
                           "NV1 X NV2 NV1 SYS NV2 SYS SYS",  //
                           "NV1 NV2 X NV2 SYS SYS NV1 SYS",  //
                           "NV2 NV1 NV2 X SYS SYS SYS NV1",  //
                           "NV2 SYS SYS SYS X NV1 NV1 NV2",  //
                           "SYS NV2 SYS SYS NV1 X NV2 NV1",  //
                           "SYS SYS NV1 SYS NV1 NV2 X NV2",  //
                           "SYS SYS SYS NV1 NV2 NV1 NV2 X"});
  for (size_t i = 0; i < host.gpus.size(); ++i) {
    host.gpus[i].numa_node = i < 4 ? 0 : 1;
    host.gpus[i].compute_capability = "7.0";
  }
  return host;
}

// Sixteen V100 behind NVSwitches: all with all. Source: NVIDIA, "NVSwitch and DGX-2", Hot Chips
// 2018.
inline Host dgx2() {
  Host host = gpu_host(0, 16, "Tesla V100-SXM3-32GB");
  host.gpu_links.assign(16, std::vector<Link>(16, {LinkKind::nvlink, 6}));
  for (size_t i = 0; i < 16; ++i)
    host.gpu_links[i][i] = {LinkKind::self, 0};
  return host;
}

// Two sockets with a switch and two GPUs each.
inline Host dual_socket_pcie() {
  Host host = linked_host("NVIDIA A10",
                          {"X PIX SYS SYS", "PIX X SYS SYS", "SYS SYS X PIX", "SYS SYS PIX X"});
  for (size_t i = 0; i < 4; ++i)
    host.gpus[i].numa_node = static_cast<int>(i / 2);
  return host;
}

// Two pairs with an NVLink bridge, badly numbered, and a slow card among them.
inline Host workstation() {
  Host host = linked_host("NVIDIA RTX A6000",
                          {"X PHB NV4 PHB PHB",  //
                           "PHB X PHB NV4 PHB",  //
                           "NV4 PHB X PHB PHB",  //
                           "PHB NV4 PHB X PHB",  //
                           "PHB PHB PHB PHB X"});
  host.gpus[4].model = "NVIDIA T400";
  host.gpus[4].pcie_generation = 3;
  host.gpus[4].pcie_width = 4;
  return host;
}

// Four packages of two dies, four Infinity Fabric links inside and one or two between. Source: Oak
// Ridge, "Frontier User Guide", node diagram (of a die's eight links one goes to the CPU, and of
// the odd ones another to a NIC); dies without links are taken to be as far as sockets are.
inline Host mi250x() {
  Host host = gpu_host(0, 8, "AMD Instinct MI250X");
  host.gpu_links.assign(8, std::vector<Link>(8, {LinkKind::sys, 0}));
  const auto join_dies = [&](size_t a, size_t b, int count) {
    host.gpu_links[a][b] = host.gpu_links[b][a] = {LinkKind::xgmi, count};
  };
  for (size_t i = 0; i < 8; ++i)
    host.gpu_links[i][i] = {LinkKind::self, 0};
  for (size_t i = 0; i < 8; i += 2)
    join_dies(i, i + 1, 4);
  join_dies(0, 6, 2);
  join_dies(2, 4, 2);
  for (const auto& [a, b] : {std::pair{0, 2}, {1, 3}, {4, 6}, {5, 7}, {1, 5}, {3, 7}}) {
    join_dies(static_cast<size_t>(a), static_cast<size_t>(b), 1);
  }
  for (Gpu& gpu : host.gpus)
    gpu.vendor = Vendor::amd;
  return host;
}

// Any kinds of links anywhere.
inline Host random_links(unsigned seed, int num_gpus) {
  constexpr const char* kKinds[] = {
      "NV1", "NV2", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS", "SYS", "?"};
  std::mt19937 random(seed);
  Host host = gpu_host(0, num_gpus, "Tesla V100-SXM2-16GB");
  const auto count = static_cast<size_t>(num_gpus);
  host.gpu_links.assign(count, std::vector<Link>(count, {LinkKind::self, 0}));
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < a; ++b) {
      host.gpu_links[a][b] = host.gpu_links[b][a] =
          parse_link(kKinds[random() % std::size(kKinds)]).value();
    }
  }
  return host;
}

}  // namespace muster
