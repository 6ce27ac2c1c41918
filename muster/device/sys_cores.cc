// Each CPU's place is read first, in numbers that only tell places apart. Sockets and caches are
// then numbered from 0 as hwloc does, and CPUs at one place become the threads of one core.
#include "muster/device/sys_cores.h"

#include <filesystem>
#include <map>
#include <ranges>
#include <set>
#include <tuple>

#include "muster/base/folders.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/device/pci_tree.h"
#include "muster/device/readers/cpu_mask.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// The place of one CPU, by numbers that only tell places apart.
struct CpuPlace {
  int socket = 0;
  int node = 0;
  int l3 = 0;    // the first CPU that shares it
  int core = 0;  // the first of its threads
};

// Returns the lowest CPU of the mask in a file ("00000000,00000033").
int first_cpu_or(const fs::path& file, int fallback) {
  const auto cpus = parse_cpu_mask(read_line(file));
  return cpus && !cpus->empty() ? cpus->front() : fallback;
}

// Returns the NUMA node of each CPU; a kernel without nodes has no such folders.
std::map<int, int> nodes_of_cpus(const fs::path& system) {
  std::map<int, int> nodes;
  for (const fs::path& entry : paths_in(system / "node")) {
    const std::string name = entry.filename();
    if (!name.starts_with("node"))
      continue;
    const auto node = parse_number(name.substr(4), 0, kMaxNumber);
    const auto cpus = parse_cpu_mask(read_line(entry / "cpumap"));
    if (!node || !cpus)
      continue;
    for (const int cpu : *cpus)
      nodes[cpu] = *node;
  }
  return nodes;
}

// The last level that sysfs knows of is the third.
int last_level_cache_or(const fs::path& folder, int fallback) {
  for (const fs::path& entry : paths_in(folder / "cache")) {
    if (read_line(entry / "level") == "3")
      return first_cpu_or(entry / "shared_cpu_map", fallback);
  }
  return fallback;
}

// Returns numbers from 0 in the order of the keys, as hwloc counts.
template <class Key>
std::map<Key, int> numbers_of_keys(const std::set<Key>& keys) {
  std::map<Key, int> numbers;
  for (const Key& key : keys)
    numbers.emplace(key, int_size(numbers));
  return numbers;
}

// What sysfs does not tell of a CPU makes it a core of its own on node and socket 0.
std::map<int, CpuPlace> places_of(const std::string& sysroot, const Ints& cpus) {
  const fs::path system = sysroot + "/sys/devices/system";
  const auto nodes = nodes_of_cpus(system);
  std::map<int, CpuPlace> places;
  for (const int cpu : cpus) {
    const fs::path folder = system / "cpu" / cat("cpu", cpu);
    const std::string socket = read_line(folder / "topology" / "physical_package_id");
    places[cpu] = {.socket = parse_number(socket, 0, kMaxNumber).value_or(0),
                   .node = find_or(nodes, cpu),
                   .l3 = last_level_cache_or(folder, -1),
                   .core = first_cpu_or(folder / "topology" / "thread_siblings", cpu)};
  }
  return places;
}

}  // namespace

CpuCores read_sys_cores(const std::string& sysroot, const Ints& cpus) {
  const std::map<int, CpuPlace> places = places_of(sysroot, cpus);
  IntSet sockets;
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
  const auto all = std::views::values(cores);
  return {all.begin(), all.end()};
}

}  // namespace muster
