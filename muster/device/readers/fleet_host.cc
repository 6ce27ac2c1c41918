// Cores, GPUs and NICs are spread over the NUMA nodes in equal blocks, each in its own order; a
// node is a socket with one cache. GPUs and NICs share PCIe switches in blocks too.
#include "muster/device/readers/fleet_host.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>

#include "muster/base/mapped.h"
#include "muster/device/cpu_list.h"
#include "muster/device/links.h"
#include "muster/device/numbers.h"
#include "muster/device/readers/captured_host.h"

namespace muster {
namespace {

// Returns which of `blocks` equal parts of `count` things the thing number `i` is in.
int block_of(int i, int count, int blocks) {
  return i * blocks / count;
}

LinkKind over_pcie(const std::optional<int>& a, const std::optional<int>& b) {
  return a == b ? LinkKind::node : LinkKind::sys;
}

// Returns the link between two GPUs that are wired to each other; unknown when they have no ports
// for it.
Link direct_link(const GpuModel& a, const GpuModel& b) {
  if (a.vendor != b.vendor || a.links == 0 || b.links == 0)
    return {};
  const LinkKind kind = a.vendor == Vendor::amd ? LinkKind::xgmi : LinkKind::nvlink;
  return {kind, std::min(a.links, b.links)};
}

Link wired_link(const FleetHost& wanted, size_t i, size_t j) {
  switch (wanted.nvlink) {
    case NvlinkLayout::none:
      return {};
    case NvlinkLayout::all:
      return direct_link(*wanted.gpus[i], *wanted.gpus[j]);
    case NvlinkLayout::pairs:
      return i / 2 == j / 2 ? direct_link(*wanted.gpus[i], *wanted.gpus[j]) : Link{};
    case NvlinkLayout::matrix:
      break;
  }
  return wanted.matrix[i][j];
}

Link link_between(const FleetHost& wanted, const Host& host, size_t i, size_t j) {
  Link link = wired_link(wanted, i, j);
  if (link.kind == LinkKind::unknown)
    link.kind = over_pcie(host.gpus[i].numa_node, host.gpus[j].numa_node);
  return link;
}

// A core has one hardware thread, whose number is the core's.
void add_cores(const FleetHost& wanted, Host& host) {
  for (int i = 0; i < wanted.cores; ++i) {
    const int node = block_of(i, wanted.cores, wanted.numa);
    host.cores.push_back({.cpus = {i}, .numa_node = node, .socket = node, .l3 = node});
  }
  if (wanted.cores > 0)
    host.num_cores = wanted.cores;
}

// Returns the CPUs of a NUMA node as text.
std::string cpus_of(const Host& host, int node) {
  const auto is_there = [&](const CpuCore& core) {
    return core.numa_node == node;
  };
  const auto first_cpu = [](const CpuCore& core) {
    return core.cpus.front();
  };
  return to_cpu_list(mapped(host.cores | std::views::filter(is_there), first_cpu));
}

// GPUs are near to the CPUs of their own node.
void add_gpus(const FleetHost& wanted, Host& host) {
  const Strings cpus = mapped_indices(wanted.numa, [&](int node) { return cpus_of(host, node); });
  const int count = int_size(wanted.gpus);
  for (int i = 0; i < count; ++i) {
    const int node = block_of(i, count, wanted.numa);
    Gpu gpu{.index = {i}};
    apply_model(gpu, *wanted.gpus[i]);
    gpu.numa_node = node;
    gpu.near_cpus = cpus[node];
    host.gpus.push_back(std::move(gpu));
  }
  host.gpu_links = unknown_links(count);
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < count; ++j) {
      if (i != j)
        host.gpu_links[i][j] = link_between(wanted, host, i, j);
    }
  }
}

// A NIC and a GPU in the same block share a switch, as in machines that are made for RDMA.
void add_nics(const FleetHost& wanted, Host& host) {
  const int count = int_size(wanted.nics);
  for (int k = 0; k < count; ++k)
    host.nics.push_back({.name = wanted.nics[k], .numa_node = block_of(k, count, wanted.numa)});
  const int gpus = int_size(host.gpus);
  if (count == 0 || gpus == 0)
    return;
  host.nic_links.assign(gpus, std::vector<Link>(count));
  const int switches = std::min(count, gpus);
  for (int i = 0; i < gpus; ++i) {
    for (int k = 0; k < count; ++k) {
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
  invent_uuids(named);
  return named;
}

}  // namespace muster
