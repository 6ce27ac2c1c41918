#include "muster/device/nvml_links.h"

#include <algorithm>
#include <map>
#include <string>

namespace muster::nvml {
namespace {

constexpr unsigned kMaxNvlinks =
    64;  // today's GPUs have 18 at most; NVML refuses the first beyond its own

// The ends of one GPU's active NVLinks.
struct Nvlinks {
  std::map<std::string, int> to_pci;  // GPUs' PCI addresses and how many links lead there
  int to_switches = 0;
};

Nvlinks read_nvlinks(const Api& api, Device device) {
  Nvlinks found;
  if (device == nullptr || !api.nvlink_state)
    return found;
  for (unsigned link = 0; link < kMaxNvlinks; ++link) {
    int active = 0;
    const Return code = api.nvlink_state(device, link, &active);
    if (code == kInvalidArgument || (code == kNotSupported && link == 0))
      break;
    if (code != kSuccess || active == 0)
      continue;
    int type = kRemoteIsGpu;  // drivers that do not tell are older than most switches
    if (api.nvlink_remote_type)
      api.nvlink_remote_type(device, link, &type);
    PciInfo pci{};
    if (type == kRemoteIsSwitch) {
      ++found.to_switches;
    } else if (api.nvlink_remote_pci && api.nvlink_remote_pci(device, link, &pci) == kSuccess) {
      ++found.to_pci[linux_pci_address(pci.bus_id)];
    }
  }
  return found;
}

int count_between(const Nvlinks& a, const std::string& pci_of_b, const Nvlinks& b) {
  const auto direct = a.to_pci.find(pci_of_b);
  if (direct != a.to_pci.end())
    return direct->second;
  return std::min(a.to_switches, b.to_switches);
}

LinkKind kind_of(int level) {
  switch (level) {
    case kSameBoard:
    case kOneSwitch:
      return LinkKind::pix;
    case kSeveralSwitches:
      return LinkKind::pxb;
    case kHostBridge:
      return LinkKind::phb;
    case kNumaNode:
      return LinkKind::node;
    case kSystem:
      return LinkKind::sys;
    default:
      return LinkKind::unknown;
  }
}

Link pci_link(const Api& api, Device a, Device b) {
  int level = -1;
  if (a == nullptr || b == nullptr || !api.common_ancestor)
    return {};
  if (api.common_ancestor(a, b, &level) != kSuccess)
    return {};
  return {.kind = kind_of(level)};
}

}  // namespace

std::vector<std::vector<Link>> read_links(const Api& api,
                                          const std::vector<Device>& devices,
                                          const std::vector<Gpu>& gpus) {
  std::vector<Nvlinks> nvlinks;
  nvlinks.reserve(devices.size());
  for (const Device device : devices)
    nvlinks.push_back(read_nvlinks(api, device));
  std::vector links(gpus.size(), std::vector<Link>(gpus.size()));
  for (size_t i = 0; i < gpus.size(); ++i) {
    links[i][i] = {.kind = LinkKind::self};
    for (size_t j = 0; j < i; ++j) {
      const int count = count_between(nvlinks[i], gpus[j].pci.value, nvlinks[j]);
      links[i][j] =
          count > 0 ? Link{LinkKind::nvlink, count} : pci_link(api, devices[i], devices[j]);
      links[j][i] = links[i][j];
    }
  }
  return links;
}

}  // namespace muster::nvml
