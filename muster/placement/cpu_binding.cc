#include "muster/placement/cpu_binding.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"

namespace muster {
namespace {

using Cores = std::vector<const CpuCore*>;

[[noreturn]] void fail_to_bind(NumaBinding binding,
                               const std::string& expected,
                               const std::string& got,
                               const RankPlan& rank) {
  throw Error(ErrorCode::invalid_argument,
              cat("--numa-binding ",
                  to_string(binding),
                  ": expected ",
                  expected,
                  ", got ",
                  got,
                  " (rank ",
                  rank.rank,
                  ", GPU ",
                  rank.device.index.value,
                  " of host ",
                  rank.host,
                  "); --numa-binding none leaves ranks unbound"));
}

std::string cpu_list(const Cores& cores) {
  std::vector<int> cpus;
  for (const CpuCore* core : cores)
    cpus.insert(cpus.end(), core->cpus.begin(), core->cpus.end());
  return to_cpu_list(std::move(cpus));
}

int first_cpu(const CpuCore& core) {
  return core.cpus.empty() ? -1 : *std::min_element(core.cpus.begin(), core.cpus.end());
}

// In the order of their first CPU.
Cores cores_of_node(const Host& host, int node) {
  Cores cores;
  for (const CpuCore& core : host.cores) {
    if (core.numa_node == node && !core.cpus.empty())
      cores.push_back(&core);
  }
  std::sort(cores.begin(), cores.end(), [](const CpuCore* a, const CpuCore* b) {
    return first_cpu(*a) < first_cpu(*b);
  });
  return cores;
}

Cores cores_of_socket(const Host& host, const Cores& node) {
  std::set<int> sockets;
  for (const CpuCore* core : node)
    sockets.insert(core->socket);
  Cores cores;
  for (const CpuCore& core : host.cores) {
    if (sockets.contains(core.socket))
      cores.push_back(&core);
  }
  return cores;
}

// Most cores first; of equals, the one with the lowest CPU.
std::vector<Cores> complexes_of(const Cores& node) {
  std::map<int, Cores> by_cache;
  for (const CpuCore* core : node)
    by_cache[core->l3].push_back(core);
  std::vector<Cores> complexes;
  complexes.reserve(by_cache.size());
  for (const auto& [cache, cores] : by_cache)
    complexes.push_back(cores);
  std::sort(complexes.begin(), complexes.end(), [](const Cores& a, const Cores& b) {
    return a.size() != b.size() ? a.size() > b.size() : first_cpu(*a[0]) < first_cpu(*b[0]);
  });
  return complexes;
}

// The part of `cores` for the `place`-th of `count` ranks: the first ranks get one more where it is
// uneven.
Cores slice(const Cores& cores, size_t place, size_t count) {
  const size_t each = cores.size() / count;
  const size_t extra = cores.size() % count;
  const size_t from = place * each + std::min(place, extra);
  const size_t to = from + each + (place < extra ? 1 : 0);
  return {cores.begin() + static_cast<ptrdiff_t>(from), cores.begin() + static_cast<ptrdiff_t>(to)};
}

// The ranks on one NUMA node.
void bind_node(const Host& host, NumaBinding binding, const std::vector<RankPlan*>& ranks) {
  const Cores node = cores_of_node(host, *ranks[0]->numa_node);
  if (node.empty()) {
    fail_to_bind(
        binding, cat("usable CPUs on NUMA node ", *ranks[0]->numa_node), "none", *ranks[0]);
  }
  if (binding == NumaBinding::exclusive && node.size() < ranks.size()) {
    fail_to_bind(
        binding,
        cat("a core for each of ", ranks.size(), " ranks on NUMA node ", *ranks[0]->numa_node),
        cat(node.size()),
        *ranks[0]);
  }
  const std::vector<Cores> complexes = complexes_of(node);
  const std::string whole =
      cpu_list(binding == NumaBinding::socket ? cores_of_socket(host, node) : node);
  for (size_t place = 0; place < ranks.size(); ++place) {
    RankPlan& rank = *ranks[place];
    rank.bind_cpus = true;
    rank.cpus = binding == NumaBinding::exclusive ? cpu_list(slice(node, place, ranks.size()))
                : binding == NumaBinding::core_complex
                    ? cpu_list(complexes[place % complexes.size()])
                    : whole;
  }
}

void name_near_cpus(const Host& host, int node, const std::vector<RankPlan*>& ranks) {
  const bool all_named = std::all_of(
      ranks.begin(), ranks.end(), [](const RankPlan* rank) { return !rank->cpus.empty(); });
  if (all_named)
    return;
  const std::string cpus = cpu_list(cores_of_node(host, node));
  for (RankPlan* rank : ranks) {
    if (rank->cpus.empty())
      rank->cpus = cpus;
  }
}

}  // namespace

void bind_to_cpus(const Host& host, NumaBinding binding, std::span<RankPlan> ranks) {
  std::map<int, std::vector<RankPlan*>> by_node;
  for (RankPlan& rank : ranks) {
    if (rank.device.kind == DeviceAssignment::Kind::cpu)
      continue;
    if (rank.numa_node) {
      by_node[*rank.numa_node].push_back(&rank);
    } else if (binding != NumaBinding::none) {
      fail_to_bind(binding, "to know the GPU's NUMA node", "none", rank);
    }
    if (binding != NumaBinding::none && host.cores.empty()) {
      fail_to_bind(binding, "to know the host's cores", "none", rank);
    }
  }
  for (const auto& [node, its_ranks] : by_node) {
    if (binding == NumaBinding::none) {
      name_near_cpus(host, node, its_ranks);
    } else {
      bind_node(host, binding, its_ranks);
    }
  }
}

}  // namespace muster
