// Drivers are asked first, since they know more than sysfs does; PCI and the kernel fill in what
// they left open. Every step beyond the names of GPUs is done only when somebody asked for it: a
// launcher waits for this.
#include "muster/device/probe.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/host_identity.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/device/amd.h"
#include "muster/device/cores.h"
#include "muster/device/cpu_topology.h"
#include "muster/device/numbers.h"
#include "muster/device/pci_tree.h"
#include "muster/device/sys_cores.h"

namespace muster {
namespace {

constexpr int64_t kMaxCpuSlots = 65536;

// The flag counts before the environment, as everywhere.
int cpu_slots(const ProbeOptions& options) {
  int64_t slots = options.cpu_slots;
  const char* source = "--cpu-slots";
  if (slots == 0) {
    source = "MUSTER_CPU_SLOTS";
    slots = get_env_int(source).value_or(kDefaultCpuSlots);
  }
  if (slots < 1 || slots > kMaxCpuSlots) {
    throw invalid_argument("devices: expected a number of CPU slots from 1 to ",
                           kMaxCpuSlots,
                           " in ",
                           source,
                           ", got ",
                           slots);
  }
  return static_cast<int>(slots);
}

// Puts AMD's links behind NVIDIA's: no link of theirs joins GPUs of two vendors.
void append_links(LinkMatrix& gpu_links, const AmdReport& amd, size_t num_nvidia) {
  for (auto& row : gpu_links)
    row.resize(num_nvidia + amd.gpus.size());
  for (const auto& links : amd.links)
    append_all(gpu_links.emplace_back(num_nvidia), links);
}

// NVIDIA's GPUs come first, AMD's after them.
void find_gpus(const ProbeOptions& options, Host& host) {
  NvmlOptions nvml_options = options.nvml;
  nvml_options.detail = options.detail;
  nvml_options.links = options.links;
  nvml_options.sysroot = options.sysroot;
  NvmlReport nvml = probe_nvml(nvml_options);
  const AmdReport amd =
      probe_amd({.detail = options.detail, .links = options.links, .sysroot = options.sysroot});
  host.driver_version = text_or(nvml.driver_version, amd.driver_version);
  host.gpus = std::move(nvml.gpus);
  host.gpu_links = std::move(nvml.links);
  const int num_nvidia = int_size(host.gpus);
  for (const Gpu& gpu : amd.gpus)
    host.gpus.emplace_back(gpu).index.value += num_nvidia;
  if (options.links)
    append_links(host.gpu_links, amd, num_nvidia);
  if (!host.gpus.empty())
    return;
  host.gpu_note = amd.note.empty() ? nvml.note : cat(nvml.note, "; ", amd.note);
  host.gpus_expected = nvml.has_driver || !amd.note.empty();
}

// A device whose firmware names no NUMA node is on the only one, where there is only one.
void find_numa_nodes(const std::string& sysroot, Host& host) {
  const auto only = only_numa_node(sysroot);
  const auto fill_in = [&](auto& devices) {
    for (auto& device : devices)
      device.numa_node = device.numa_node ? device.numa_node : only;
  };
  fill_in(host.gpus);
  fill_in(host.nics);
}

template <class Device>
std::vector<PciPlace> places_on_pci(const std::string& sysroot,
                                    const std::vector<Device>& devices) {
  return mapped(devices, [&](const Device& device) { return find_pci_place(sysroot, device.pci); });
}

// Fills in what PCI alone tells: pairs that no driver spoke of, and network cards.
void find_pci_links(const std::string& sysroot, Host& host) {
  host.nics = find_nics(sysroot);
  const auto gpus = places_on_pci(sysroot, host.gpus);
  const auto nics = places_on_pci(sysroot, host.nics);
  for (const size_t i : indices_of(gpus)) {
    for (const size_t j : indices_of(gpus)) {
      Link& link = host.gpu_links[i][j];
      if (link.kind == LinkKind::unknown)
        link = pci_link(gpus[i], gpus[j]);
    }
    if (!nics.empty())
      host.nic_links.push_back(
          mapped(nics, [&](const PciPlace& nic) { return pci_link(gpus[i], nic); }));
  }
}

// hwloc's library may be missing; what the kernel says is enough to bind ranks.
void find_cores(Host& host) {
  try {
    host.cores = read_cpu_cores();
  } catch (const Error& error) {
    host.cores = read_sys_cores("", usable_cpus());
    host.notes.push_back(cat(error.message(), "; until then cores are as /sys tells of them"));
  }
}

}  // namespace

Inventory probe_this_machine(const ProbeOptions& options) {
  Host host;
  host.name = own_host_name();
  host.num_cores = usable_cores();
  host.cpu_slots = cpu_slots(options);
  if (options.gpus) {
    find_gpus(options, host);
  } else {
    host.gpu_note = "GPUs were not looked for";
  }
  if (options.links)
    find_pci_links(options.sysroot, host);
  find_numa_nodes(options.sysroot, host);
  if (options.cpu_topology)
    find_cores(host);
  return {.source = "this machine", .simulated = false, .hosts = {std::move(host)}};
}

}  // namespace muster
