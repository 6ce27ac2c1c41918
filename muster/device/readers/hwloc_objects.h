// The parts of an hwloc tree that hwloc_xml.cc keeps: the devices with their places, and the
// matrices of bandwidths between them. For hwloc_xml.cc and hwloc_links.cc.
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
  Gpu gpu = {};      // of a GPU
  std::string nic_name = {};
  std::optional<int> number = {};  // nvml3, rsmi0
  // gp_index of the PCI device and of what the system calls it.
  std::vector<int64_t> object_numbers = {};
};

// The matrix of unidirectional bandwidths in MB/s whose name is `name` ("NVLinkBandwidth"): by
// pairs of objects' gp_index; empty when there is none. Throws: invalid_argument when it is not
// square or too large.
struct BandwidthMatrix {
  std::vector<int64_t> objects;
  std::vector<bool> may_be_switch;  // a processor that GPUs have links to (POWER) passes nothing on
  std::vector<int64_t> values;      // row by row
  bool empty() const { return objects.empty(); }
};
BandwidthMatrix read_bandwidths(const XmlFile& file, const std::string& name);

// Links of GPUs with each other: those of `tree`, and better ones where the file has bandwidths.
LinkMatrix hwloc_gpu_links(const XmlFile& file,
                           const DeviceTree& tree,
                           const std::vector<HwlocDevice>& gpus);

}  // namespace muster
