#include "muster/device/readers/fleet_host.h"

#include <algorithm>

#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/readers/captured_host.h"

namespace muster {
namespace {

// Which of `blocks` equal parts of `count` things the thing number `i` is in.
int block_of(size_t i, size_t count, size_t blocks) {
  return static_cast<int>(i * blocks / count);
}

LinkKind over_pcie(const std::optional<int>& a, const std::optional<int>& b) {
  return a == b ? LinkKind::node : LinkKind::sys;
}

Link direct_link(const GpuModel& a, const GpuModel& b) {
  if (a.vendor != b.vendor || a.links == 0 || b.links == 0)
    return {};
  const LinkKind kind = a.vendor == Vendor::amd ? LinkKind::xgmi : LinkKind::nvlink;
  return {kind, std::min(a.links, b.links)};
}

Link link_between(const FleetHost& wanted, const Host& host, size_t i, size_t j) {
  Link link;
  if (wanted.nvlink == NvlinkLayout::matrix)
    link = wanted.matrix[i][j];
  const bool joined = wanted.nvlink == NvlinkLayout::all ||
                      (wanted.nvlink == NvlinkLayout::pairs && i / 2 == j / 2);
  if (joined)
    link = direct_link(*wanted.gpus[i], *wanted.gpus[j]);
  if (link.kind == LinkKind::unknown)
    link.kind = over_pcie(host.gpus[i].numa_node, host.gpus[j].numa_node);
  return link;
}

void add_cores(const FleetHost& wanted, Host& host) {
  const auto cores = static_cast<size_t>(wanted.cores);
  for (size_t i = 0; i < cores; ++i) {
    const int node = block_of(i, cores, static_cast<size_t>(wanted.numa));
    host.cores.push_back(
        {.cpus = {static_cast<int>(i)}, .numa_node = node, .socket = node, .l3 = node});
  }
  if (wanted.cores > 0)
    host.num_cores = wanted.cores;
}

std::string cpus_of(const Host& host, int node) {
  std::vector<int> cpus;
  for (const CpuCore& core : host.cores) {
    if (core.numa_node == node)
      cpus.push_back(core.cpus.front());
  }
  return to_cpu_list(std::move(cpus));
}

void add_gpus(const FleetHost& wanted, Host& host) {
  std::vector<std::string> cpus;
  cpus.reserve(static_cast<size_t>(wanted.numa));
  for (int node = 0; node < wanted.numa; ++node)
    cpus.push_back(cpus_of(host, node));
  const size_t count = wanted.gpus.size();
  for (size_t i = 0; i < count; ++i) {
    Gpu gpu;
    gpu.index.value = static_cast<int>(i);
    apply_model(gpu, *wanted.gpus[i]);
    gpu.numa_node = block_of(i, count, static_cast<size_t>(wanted.numa));
    gpu.near_cpus = cpus[static_cast<size_t>(*gpu.numa_node)];
    host.gpus.push_back(std::move(gpu));
  }
  host.gpu_links = unknown_links(count, count, true);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      if (i != j)
        host.gpu_links[i][j] = link_between(wanted, host, i, j);
    }
  }
}

void add_nics(const FleetHost& wanted, Host& host) {
  const size_t count = wanted.nics.size();
  for (size_t k = 0; k < count; ++k) {
    host.nics.push_back({.name = wanted.nics[k],
                         .numa_node = block_of(k, count, static_cast<size_t>(wanted.numa))});
  }
  const size_t gpus = host.gpus.size();
  if (count == 0 || gpus == 0)
    return;
  host.nic_links = unknown_links(gpus, count, false);
  const size_t switches = std::min(count, gpus);
  for (size_t i = 0; i < gpus; ++i) {
    for (size_t k = 0; k < count; ++k) {
      const bool same = block_of(i, gpus, switches) == block_of(k, count, switches);
      host.nic_links[i][k].kind =
          same ? LinkKind::pix : over_pcie(host.gpus[i].numa_node, host.nics[k].numa_node);
    }
  }
}

}  // namespace

Host invent_host(const FleetHost& wanted) {
  Host host;
  host.cpu_slots = wanted.cpu_slots;
  add_cores(wanted, host);
  if (wanted.gpus.empty()) {
    host.gpu_note = "the fleet file gives it none";
  } else {
    add_gpus(wanted, host);
  }
  add_nics(wanted, host);
  return host;
}

Host named_host(const Host& host, const std::string& name) {
  Host named = host;
  named.name = name;
  for (Gpu& gpu : named.gpus) {
    if (gpu.uuid.value.empty() && gpu.health == kHealthy) {
      gpu.uuid = invented_uuid(cat(name, "/", gpu.index.value));
    }
  }
  return named;
}

}  // namespace muster
