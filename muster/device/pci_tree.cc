// A device's folder in sysfs is a link whose true path goes down from the host bridge over all
// bridges to the device: the further two such paths run together, the nearer two devices are.
#include "muster/device/pci_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/folders.h"
#include "muster/base/hex.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/numbers.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// Each 'x' of the pattern stands for one hexadecimal digit in lower case.
bool fits_pattern(std::string_view text, std::string_view pattern) {
  return std::ranges::equal(text, pattern, [](char c, char wanted) {
    return wanted == 'x' ? contains(kHexDigits, c) : c == wanted;
  });
}

// Whether the text is like "0000:3b:00.0", with four digits of the domain or more.
bool is_pci_address(std::string_view text) {
  const size_t digits = std::min(text.find(':'), text.size());
  return digits >= 4 && fits_pattern(text, std::string(digits, 'x') + ":xx:xx.x");
}

bool is_host_bridge(const std::string& name) {  // "pci0000:80"
  return name.starts_with("pci") && contains(name, ':');
}

// Returns the host bridge, the bridges and the last PCI device on the true path of `folder`. Only
// the last host bridge counts: some bridges make a PCI domain of their own.
Strings pci_path(const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  Strings path;
  if (error)
    return path;
  for (const fs::path& part : real) {
    const auto name = part.string();
    if (is_host_bridge(name)) {
      path = {name};
    } else if (!path.empty() && is_pci_address(name)) {
      path.push_back(name);
    }
  }
  return path;
}

// The kernel writes -1 where the firmware names no NUMA node.
std::optional<int> numa_node_in(const fs::path& folder) {
  return parse_number(read_line(folder / "numa_node"), 0, kMaxNumber);
}

// A list of CPUs that cannot be read is as good as none.
PciPlace place_of(const fs::path& folder) {
  PciPlace place;
  place.numa_node = numa_node_in(folder);
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

// Returns the devices of one class (infiniband, net) that are on the PCI bus, by address.
Nics nics_of_class(const std::string& sysroot, const char* name) {
  Nics nics;
  for (const fs::path& entry : paths_in(cat(sysroot, "/sys/class/", name))) {
    const auto path = pci_path(entry / "device");
    if (path.size() < 2)
      continue;  // no hardware of its own: loopback, bridges, tunnels
    nics.push_back({.name = entry.filename(),
                    .pci = {path.back()},
                    .numa_node = numa_node_in(devices_folder(sysroot) / path.back())});
  }
  std::ranges::sort(nics, {}, [](const Nic& nic) { return std::tie(nic.pci.value, nic.name); });
  return nics;
}

}  // namespace

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(trim(line));
}

// An address goes into a path, so a text that is none is not looked up at all.
PciPlace find_pci_place(const std::string& sysroot, const PciAddress& pci) {
  if (!is_pci_address(pci.value))
    return {};
  return place_of(devices_folder(sysroot) / pci.value);
}

// The file has_cpu lists the nodes that have CPUs, in the form of a list of CPUs.
std::optional<int> only_numa_node(const std::string& sysroot) {
  const fs::path system = sysroot + "/sys/devices/system";
  if (!path_exists(system / "cpu"))
    return std::nullopt;
  if (!path_exists(system / "node"))
    return 0;
  try {
    const Ints nodes = parse_cpu_list(read_line(system / "node" / "has_cpu"));
    return nodes.size() == 1 ? std::optional(nodes[0]) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// A path of less than two parts is no place: the host bridge alone says nothing.
Link pci_link(const PciPlace& a, const PciPlace& b) {
  if (a.path.size() < 2 || b.path.size() < 2)
    return {};
  const auto parting = std::ranges::mismatch(a.path, b.path);
  const size_t common = parting.in1 - a.path.begin();
  if (common == 0)
    return {.kind = a.numa_node == b.numa_node ? LinkKind::node : LinkKind::sys};
  if (common == 1)
    return {.kind = LinkKind::phb};
  // Below the bridge that both share: a port of it, then the device, or further bridges.
  const size_t deepest = std::max(a.path.size(), b.path.size()) - common;
  return {.kind = deepest <= 2 ? LinkKind::pix : LinkKind::pxb};
}

// Cards for RDMA come first, and a card that is also a network device counts once.
Nics find_nics(const std::string& sysroot) {
  Nics nics;
  StringSet seen;
  for (const char* const name : {"infiniband", "net"}) {
    for (Nic& nic : nics_of_class(sysroot, name)) {
      if (seen.insert(nic.pci.value).second)
        nics.push_back(std::move(nic));
    }
  }
  return nics;
}

}  // namespace muster
