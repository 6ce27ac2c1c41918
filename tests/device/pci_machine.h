// A folder tree that looks like sysfs, for the tests of probes: PCI devices, and AMD's GPUs with
// their drivers' files. Paths of PCI devices are given below sys/devices, as
// "pci0000:00/0000:00:01.0/0000:01:00.0".
#pragma once

#include <map>
#include <string>

#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {

inline void add_pci_device(const ScratchFolder& root,
                           const std::string& path,
                           int numa_node,
                           const std::string& cpus) {
  const std::string folder = cat("sys/devices/", path);
  root.write(cat(folder, "/numa_node"), cat(numa_node, "\n"));
  root.write(cat(folder, "/local_cpulist"), cat(cpus, "\n"));
  root.link(cat("sys/bus/pci/devices/", path.substr(path.find_last_of('/') + 1)), folder);
}

// class: "infiniband", "net"
inline void add_nic(const ScratchFolder& root,
                    const std::string& class_name,
                    const std::string& name,
                    const std::string& path) {
  root.link(cat("sys/class/", class_name, "/", name, "/device"), cat("sys/devices/", path));
}

inline std::string property_lines(const std::map<std::string, uint64_t>& properties) {
  std::string text;
  for (const auto& [name, value] : properties)
    text += cat(name, " ", value, "\n");
  return text;
}

inline void add_kfd_node(const ScratchFolder& root,
                         int node,
                         uint64_t gpu_id,
                         const std::map<std::string, uint64_t>& properties) {
  const std::string folder = cat("sys/class/kfd/kfd/topology/nodes/", node);
  root.write(cat(folder, "/gpu_id"), cat(gpu_id, "\n"));
  root.write(cat(folder, "/properties"), property_lines(properties));
}

inline void add_kfd_link(const ScratchFolder& root,
                         int node,
                         int number,
                         const std::map<std::string, uint64_t>& properties) {
  root.write(cat("sys/class/kfd/kfd/topology/nodes/", node, "/io_links/", number, "/properties"),
             property_lines(properties));
}

}  // namespace muster
