#include "muster/device/sys_cores.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/pci_tree.h"
#include "muster/device/readers/cpu_mask.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// Where one CPU is, by numbers that only tell places apart.
struct CpuPlace {
  int socket = 0;
  int node = 0;
  int l3 = 0;    // the first CPU that shares it
  int core = 0;  // the first of its threads
};

int number_or(const fs::path& file, int fallback) {
  const auto number = parse_int(read_line(file));
  return number && *number >= 0 && *number < 65536 ? static_cast<int>(*number) : fallback;
}

// The lowest CPU of a mask ("00000000,00000033").
int first_cpu_or(const fs::path& file, int fallback) {
  const auto cpus = parse_cpu_mask(read_line(file));
  return cpus && !cpus->empty() ? cpus->front() : fallback;
}

std::map<int, int> nodes_of_cpus(const fs::path& system) {
  std::map<int, int> nodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(system / "node", error)) {
    const std::string name = entry.path().filename();
    const auto node = name.starts_with("node") ? parse_int(name.substr(4)) : std::nullopt;
    const auto cpus = node ? parse_cpu_mask(read_line(entry.path() / "cpumap")) : std::nullopt;
    if (!cpus)
      continue;
    for (const int cpu : *cpus)
      nodes[cpu] = static_cast<int>(*node);
  }
  return nodes;
}

int last_level_cache_or(const fs::path& folder, int fallback) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / "cache", error)) {
    if (read_line(entry.path() / "level") == "3")
      return first_cpu_or(entry.path() / "shared_cpu_map", fallback);
  }
  return fallback;
}

// Numbers from 0 in the order of the keys, as hwloc counts.
template <class Key>
std::map<Key, int> numbers_of_keys(const std::set<Key>& keys) {
  std::map<Key, int> numbers;
  for (const Key& key : keys)
    numbers.emplace(key, static_cast<int>(numbers.size()));
  return numbers;
}

std::map<int, CpuPlace> places_of(const std::string& sysroot, const std::vector<int>& cpus) {
  const fs::path system = sysroot + "/sys/devices/system";
  const std::map<int, int> nodes = nodes_of_cpus(system);
  std::map<int, CpuPlace> places;
  for (const int cpu : cpus) {
    const fs::path folder = system / "cpu" / cat("cpu", cpu);
    const auto node = nodes.find(cpu);
    const int socket = number_or(folder / "topology" / "physical_package_id", 0);
    places[cpu] = {.socket = socket,
                   .node = node == nodes.end() ? 0 : node->second,
                   .l3 = last_level_cache_or(folder, -1),
                   .core = first_cpu_or(folder / "topology" / "thread_siblings", cpu)};
  }
  return places;
}

}  // namespace

std::vector<CpuCore> read_sys_cores(const std::string& sysroot, const std::vector<int>& cpus) {
  const std::map<int, CpuPlace> places = places_of(sysroot, cpus);
  std::set<int> sockets;
  std::set<std::tuple<int, int>> caches;
  std::map<std::tuple<int, int, int, int>, CpuCore> cores;
  for (const auto& [cpu, place] : places) {
    sockets.insert(place.socket);
    caches.insert({place.socket, place.l3});
  }
  const auto socket_numbers = numbers_of_keys(sockets);
  const auto cache_numbers = numbers_of_keys(caches);
  for (const auto& [cpu, place] : places) {
    CpuCore& core = cores[{place.socket, place.node, place.l3, place.core}];
    core.cpus.push_back(cpu);
    core.numa_node = place.node;
    core.socket = socket_numbers.at(place.socket);
    core.l3 = cache_numbers.at({place.socket, place.l3});
  }
  std::vector<CpuCore> all;
  all.reserve(cores.size());
  for (auto& [place, core] : cores)
    all.push_back(std::move(core));
  return all;
}

}  // namespace muster
