// Machines to draw: shapes of real ones, made up for the tests of pictures.
#pragma once

#include <functional>

#include "tests/placement/machines.h"

namespace muster {

struct SvgMachine {
  int gpus = 8;
  int nodes = 2;
  int cores_per_node = 32;
  int nics = 0;             // one for each GPU, or each pair of GPUs
  int gpus_per_switch = 0;  // 0: every GPU has a slot of its own
  std::function<Link(int, int)> link = {};
};

inline Host svg_machine(const SvgMachine& shape) {
  Host host = gpu_host(0, shape.gpus, "NVIDIA Test 80GB HBM3");
  host.name = "box";
  host.driver_version = "570.1";
  host.num_cores = shape.nodes * shape.cores_per_node;
  for (int i = 0; i < host.num_cores; ++i) {
    const int node = i / shape.cores_per_node;
    host.cores.push_back({.cpus = {i, i + host.num_cores}, .numa_node = node, .socket = node});
  }
  const auto node_of = [&](int device, int count) {
    return device * shape.nodes / count;
  };
  for (int i = 0; i < shape.gpus; ++i) {
    Gpu& gpu = host.gpus[static_cast<size_t>(i)];
    gpu.numa_node = node_of(i, shape.gpus);
    gpu.memory_total_bytes = uint64_t{80} << 30;
    gpu.compute_capability = "9.0";
    gpu.pcie_generation = 5;
    char pci[32];
    std::snprintf(pci, sizeof(pci), "0000:%02x:00.0", (16 + i * 11) & 0xff);
    gpu.pci.value = pci;
  }
  for (int k = 0; k < shape.nics; ++k) {
    host.nics.push_back(
        {.name = "mlx5_" + std::to_string(k), .pci = {}, .numa_node = node_of(k, shape.nics)});
  }
  const auto near = [&](int gpu, int nic) {
    return shape.gpus_per_switch > 0 &&
           gpu / shape.gpus_per_switch == nic * shape.gpus / shape.nics / shape.gpus_per_switch;
  };
  for (int i = 0; i < shape.gpus; ++i) {
    host.gpu_links.emplace_back();
    host.nic_links.emplace_back();
    for (int j = 0; j < shape.gpus; ++j) {
      host.gpu_links.back().push_back(i == j       ? Link{LinkKind::self, 0}
                                      : shape.link ? shape.link(i, j)
                                                   : Link{});
    }
    for (int k = 0; k < shape.nics; ++k) {
      host.nic_links.back().push_back({near(i, k) ? LinkKind::pxb : LinkKind::sys, 0});
    }
  }
  return host;
}

// Eight GPUs behind NVLink switches, a NIC for each, two of each below a PCIe switch.
inline Host svg_switched(int gpus) {
  return svg_machine({.gpus = gpus,
                      .cores_per_node = 48,
                      .nics = gpus,
                      .gpus_per_switch = 2,
                      .link = [](int, int) { return Link{LinkKind::nvlink, 18}; }});
}

// Two rings of four with diagonals, joined by four links: single and double NVLinks, PCIe for the
// rest.
inline Host svg_cube_mesh() {
  return svg_machine(
      {.gpus = 8, .cores_per_node = 20, .nics = 4, .gpus_per_switch = 2, .link = [](int i, int j) {
         if (i / 4 != j / 4 && i % 4 != j % 4)
           return Link{LinkKind::sys, 0};
         const bool twice = i / 4 != j / 4 || (i ^ j) == 3;
         return Link{LinkKind::nvlink, twice ? 2 : 1};
       }});
}

// No NVLink at all: pairs below a switch.
inline Host svg_pcie(int gpus) {
  return svg_machine({.gpus = gpus, .cores_per_node = 24, .link = [gpus](int i, int j) {
                        if (i / 2 == j / 2)
                          return Link{LinkKind::pix, 0};
                        return Link{i * 2 / gpus == j * 2 / gpus ? LinkKind::node : LinkKind::sys,
                                    0};
                      }});
}

inline Plan svg_plan(const Host& host, const std::vector<int>& gpus) {
  Plan plan{.policy = "topology"};
  for (size_t i = 0; i < gpus.size(); ++i) {
    RankPlan rank{
        .rank = static_cast<int>(i), .local_rank = static_cast<int>(i), .host = host.name};
    if (gpus[i] >= 0) {
      rank.device.kind = DeviceAssignment::Kind::gpu;
      rank.device.uuid = host.gpus.at(static_cast<size_t>(gpus[i])).uuid;
      rank.bind_cpus = true;
      rank.cpus = std::to_string(4 * i) + "-" + std::to_string(4 * i + 3);
    }
    plan.ranks.push_back(rank);
  }
  return plan;
}

}  // namespace muster
