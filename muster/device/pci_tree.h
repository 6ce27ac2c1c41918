// Where PCI devices hang, as Linux tells in sysfs: NUMA node, near CPUs, the bridges above, and the
// network cards. For the probes; knows nothing of GPUs. (One-line files and a link: that costs
// microseconds, where a topology library takes tens of milliseconds to look at the whole PCI tree.)
#pragma once

#include <optional>
#include <string>

#include "muster/base/strings.h"
#include "muster/device/inventory.h"

namespace muster {

struct PciPlace {
  std::optional<int> numa_node{};  // nothing: the firmware does not tell
  std::string near_cpus{};         // "0-31,64-95"; empty: not known
  // From the host bridge down: "pci0000:80", "0000:80:01.0", …, the device itself. Empty: not
  // known.
  Strings path{};
};

// The place of one device; what sysfs does not tell stays empty. `sysroot`: a folder that holds
// sys/, for captured machines; empty: this one.
PciPlace find_pci_place(const std::string& sysroot, const PciAddress& pci);

// How two devices are joined when nothing but PCI joins them. Source: the legend of `nvidia-smi
// topo -m`.
Link pci_link(const PciPlace& a, const PciPlace& b);

// The machine's only NUMA node with CPUs, 0 where its kernel knows no nodes; nothing where there
// are several, or `sysroot` tells of no CPU.
std::optional<int> only_numa_node(const std::string& sysroot);

// Cards for RDMA (sysfs class infiniband) by their names, then those that are network devices
// alone, each in the order of their PCI addresses. A card with several ports or functions of one
// name counts once.
Nics find_nics(const std::string& sysroot);

// The first line of a file, without blanks at its ends; empty when it cannot be read.
std::string read_line(const std::string& path);

}  // namespace muster
