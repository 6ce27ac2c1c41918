#include "muster/device/pci_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// "0000:3b:00.0"
bool is_pci_address(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon < 4 || text.size() != colon + 8)
    return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    const bool right = i == colon || i == colon + 3 ? text[i] == ':'
                       : i == colon + 6             ? text[i] == '.'
                                                    : digit;
    if (!right)
      return false;
  }
  return true;
}

bool is_host_bridge(const std::string& name) {  // "pci0000:80"
  return name.starts_with("pci") && name.find(':') != std::string::npos;
}

// The host bridge, the bridges and the last PCI device on the true path of `folder`.
std::vector<std::string> pci_path(const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  std::vector<std::string> path;
  if (error)
    return path;
  for (const fs::path& part : real) {
    const std::string name = part.string();
    if (is_host_bridge(name))
      path.clear();  // the last one: some bridges make a PCI domain of their own
    if (is_host_bridge(name) || (!path.empty() && is_pci_address(name)))
      path.push_back(name);
  }
  return path;
}

PciPlace place_of(const fs::path& folder) {
  PciPlace place;
  const auto node = parse_int(read_line(folder / "numa_node"));
  if (node && *node >= 0 && *node < 65536)
    place.numa_node = static_cast<int>(*node);
  try {
    place.near_cpus = to_cpu_list(parse_cpu_list(read_line(folder / "local_cpulist")));
  } catch (const Error&) {
    place.near_cpus.clear();  // no list: not known
  }
  place.path = pci_path(folder);
  return place;
}

fs::path devices_folder(const std::string& sysroot) {
  return sysroot + "/sys/bus/pci/devices";
}

// The devices of one class (infiniband, net) that are on the PCI bus, by address.
std::vector<Nic> nics_of_class(const std::string& sysroot, const char* name) {
  std::vector<Nic> nics;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(cat(sysroot, "/sys/class/", name), error)) {
    const auto path = pci_path(entry.path() / "device");
    if (path.size() < 2)
      continue;  // no hardware of its own: loopback, bridges, tunnels
    const PciAddress pci{path.back()};
    const auto node = parse_int(read_line(devices_folder(sysroot) / pci.value / "numa_node"));
    Nic nic{.name = entry.path().filename().string(), .pci = pci};
    if (node && *node >= 0)
      nic.numa_node = static_cast<int>(*node);
    nics.push_back(std::move(nic));
  }
  std::sort(nics.begin(), nics.end(), [](const Nic& a, const Nic& b) {
    return std::tie(a.pci.value, a.name) < std::tie(b.pci.value, b.name);
  });
  return nics;
}

}  // namespace

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(trim(line));
}

PciPlace find_pci_place(const std::string& sysroot, const PciAddress& pci) {
  if (!is_pci_address(pci.value))
    return {};
  return place_of(devices_folder(sysroot) / pci.value);
}

std::optional<int> only_numa_node(const std::string& sysroot) {
  std::error_code error;
  const fs::path system = sysroot + "/sys/devices/system";
  if (!fs::exists(system / "cpu", error))
    return std::nullopt;
  if (!fs::exists(system / "node", error))
    return 0;
  try {
    const std::vector<int> nodes = parse_cpu_list(read_line(system / "node" / "has_cpu"));
    return nodes.size() == 1 ? std::optional(nodes[0]) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

Link pci_link(const PciPlace& a, const PciPlace& b) {
  if (a.path.size() < 2 || b.path.size() < 2)
    return {};
  size_t common = 0;
  while (common < std::min(a.path.size(), b.path.size()) && a.path[common] == b.path[common])
    ++common;
  if (common == 0)
    return {.kind = a.numa_node == b.numa_node ? LinkKind::node : LinkKind::sys};
  if (common == 1)
    return {.kind = LinkKind::phb};
  // Below the bridge that both share: a port of it, then the device, or further bridges.
  const size_t deepest = std::max(a.path.size(), b.path.size()) - common;
  return {.kind = deepest <= 2 ? LinkKind::pix : LinkKind::pxb};
}

std::vector<Nic> find_nics(const std::string& sysroot) {
  std::vector<Nic> nics;
  std::set<std::string> seen;
  for (const char* const name : {"infiniband", "net"}) {
    for (Nic& nic : nics_of_class(sysroot, name)) {
      if (seen.insert(nic.pci.value).second)
        nics.push_back(std::move(nic));
    }
  }
  return nics;
}

}  // namespace muster
