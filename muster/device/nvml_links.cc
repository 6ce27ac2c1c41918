// Each GPU tells where its NVLinks end: at another GPU or at a switch. Two GPUs that no NVLink
// joins are joined by PCI, of which NVML knows the nearest thing above both.
#include "muster/device/nvml_links.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/device/links.h"

namespace muster::nvml {
namespace {

// Today's GPUs have 18 NVLinks at most; NVML refuses the first number beyond a GPU's own.
constexpr unsigned kMaxNvlinks = 64;

// The ends of one GPU's active NVLinks.
struct Nvlinks {
  std::map<std::string, int> to_pci;  // GPUs' PCI addresses and how many links lead there
  int to_switches = 0;
};

// Counts one active link at the end that it leads to.
void add_nvlink(const Api& api, Device device, unsigned link, Nvlinks& found) {
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

Nvlinks read_nvlinks(const Api& api, Device device) {
  Nvlinks found;
  if (device == nullptr || !api.nvlink_state)
    return found;
  for (unsigned link = 0; link < kMaxNvlinks; ++link) {
    int active = 0;
    const Return code = api.nvlink_state(device, link, &active);
    const bool has_none = code == kNotSupported && link == 0;
    if (code == kInvalidArgument || has_none)
      break;
    if (code == kSuccess && active != 0)
      add_nvlink(api, device, link, found);
  }
  return found;
}

// GPUs on the same switches are joined by as many links as the lesser of them has to switches.
int count_between(const Nvlinks& a, const std::string& pci_of_b, const Nvlinks& b) {
  return find_or(a.to_pci, pci_of_b, std::min(a.to_switches, b.to_switches));
}

// A level that a newer NVML may know of is an unknown link.
constexpr std::pair<int, LinkKind> kKindsOfLevels[] = {{kSameBoard, LinkKind::pix},
                                                       {kOneSwitch, LinkKind::pix},
                                                       {kSeveralSwitches, LinkKind::pxb},
                                                       {kHostBridge, LinkKind::phb},
                                                       {kNumaNode, LinkKind::node},
                                                       {kSystem, LinkKind::sys}};

// A GPU without a handle, or a driver that does not tell, leaves the link unknown.
Link pci_link(const Api& api, Device a, Device b) {
  int level = -1;
  const bool can_ask = a != nullptr && b != nullptr && api.common_ancestor;
  if (!can_ask || api.common_ancestor(a, b, &level) != kSuccess)
    return {};
  return {.kind = lookup(kKindsOfLevels, level, LinkKind::unknown)};
}

}  // namespace

LinkMatrix read_links(const Api& api, const std::vector<Device>& devices, const Gpus& gpus) {
  const auto nvlinks =
      mapped(devices, [&](const Device device) { return read_nvlinks(api, device); });
  LinkMatrix links = unknown_links(gpus.size());
  for (const size_t i : indices_of(gpus)) {
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
