// The devices of an hwloc tree that hwloc_xml.cc keeps, and the links between them. For
// hwloc_xml.cc and hwloc_links.cc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/device/readers/device_tree.h"
#include "muster/device/readers/xml_file.h"

namespace muster {

struct HwlocDevice {
  size_t place = 0;  // in the tree
  Gpu gpu{};         // of a GPU
  std::string nic_name{};
  std::optional<int> number{};  // nvml3, rsmi0
  // gp_index of the PCI device and of what the system calls it.
  Int64s object_numbers{};
};
using HwlocDevices = std::vector<HwlocDevice>;

// Links of GPUs with each other: those of `tree`, and better ones where the file has bandwidths.
// Throws: invalid_argument when these are no square, or too many.
LinkMatrix hwloc_gpu_links(const XmlFile& file, const DeviceTree& tree, const HwlocDevices& gpus);

}  // namespace muster
