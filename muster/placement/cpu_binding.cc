// Ranks are grouped by the NUMA node of their GPU, and each group divides the cores of its node.
// Cores are kept whole: their hardware threads go to the same rank.
#include "muster/placement/cpu_binding.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/divided_up.h"
#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"

namespace muster {
namespace {

using Cores = std::vector<const CpuCore*>;

// Errors name the first rank of a node, from which the user finds the others.
[[noreturn]] void fail_to_bind(NumaBinding binding,
                               const std::string& expected,
                               const std::string& got,
                               const RankPlan& rank) {
  throw invalid_argument("--numa-binding ",
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
                         "); --numa-binding none leaves ranks unbound");
}

// Returns all hardware threads of the cores.
std::string cpu_list(const Cores& cores) {
  Ints cpus;
  for (const CpuCore* core : cores)
    append_all(cpus, core->cpus);
  return to_cpu_list(std::move(cpus));
}

// A core without CPUs, which no machine should have, sorts before all others.
int first_cpu(const CpuCore& core) {
  return core.cpus.empty() ? -1 : std::ranges::min(core.cpus);
}

Cores cores_where(const Host& host, const auto& is_wanted) {
  return mapped(host.cores | std::views::filter(is_wanted),
                [](const CpuCore& core) { return &core; });
}

// Returns the node's cores in the order of their first CPU.
Cores cores_of_node(const Host& host, int node) {
  Cores cores = cores_where(
      host, [&](const CpuCore& core) { return core.numa_node == node && !core.cpus.empty(); });
  std::ranges::sort(cores, {}, [](const CpuCore* core) { return first_cpu(*core); });
  return cores;
}

// Returns the cores of every socket that the node's cores are on.
Cores cores_of_socket(const Host& host, const Cores& node) {
  return cores_where(
      host, [&](const CpuCore& core) { return contains(node, core.socket, &CpuCore::socket); });
}

// Returns the node's cores by their last-level cache, the cache with most cores first; of equals,
// the one with the lowest CPU.
std::vector<Cores> complexes_of(const Cores& node) {
  std::map<int, Cores> by_cache;
  for (const CpuCore* core : node)
    by_cache[core->l3].push_back(core);
  const auto groups = std::views::values(by_cache);
  std::vector<Cores> complexes(groups.begin(), groups.end());
  std::ranges::sort(complexes, {}, [](const Cores& cores) {
    return std::pair(-std::ssize(cores), first_cpu(*cores[0]));
  });
  return complexes;
}

// Returns each rank's part of `cores`; the first ranks get one more where it is uneven.
std::vector<Cores> slices_of(const Cores& cores, size_t num_ranks) {
  std::vector<Cores> slices;
  auto rest = std::span(cores);
  for (size_t left = num_ranks; left > 0; --left) {
    const size_t count = divided_up(rest.size(), left);
    const auto slice = rest.first(count);
    slices.emplace_back(slice.begin(), slice.end());
    rest = rest.subspan(count);
  }
  return slices;
}

// Returns the sets of cores that the ranks of one node get in turn.
std::vector<Cores> shares_of(const Host& host,
                             NumaBinding binding,
                             const Cores& node,
                             size_t num_ranks) {
  switch (binding) {
    case NumaBinding::exclusive:
      return slices_of(node, num_ranks);
    case NumaBinding::core_complex:
      return complexes_of(node);
    case NumaBinding::socket:
      return {cores_of_socket(host, node)};
    default:
      return {node};
  }
}

// Binds the ranks on one NUMA node.
void bind_node(const Host& host,
               NumaBinding binding,
               int number,
               const std::vector<RankPlan*>& ranks) {
  const Cores node = cores_of_node(host, number);
  const size_t count = ranks.size();
  if (node.empty())
    fail_to_bind(binding, cat("usable CPUs on NUMA node ", number), "none", *ranks[0]);
  if (binding == NumaBinding::exclusive && node.size() < count) {
    fail_to_bind(binding,
                 cat("a core for each of ", count, " ranks on NUMA node ", number),
                 cat(node.size()),
                 *ranks[0]);
  }
  const auto shares = shares_of(host, binding, node, count);
  for (size_t place = 0; place < count; ++place) {
    ranks[place]->bind_cpus = true;
    ranks[place]->cpus = cpu_list(shares[place % shares.size()]);
  }
}

// Without a binding a rank's CPUs are only named, for the ranks whose GPU's driver told of none.
void name_near_cpus(const Host& host, int node, const std::vector<RankPlan*>& ranks) {
  const bool all_named = none_of(ranks, [](const RankPlan* rank) { return rank->cpus.empty(); });
  if (all_named)
    return;
  const auto cpus = cpu_list(cores_of_node(host, node));
  for (RankPlan* rank : ranks) {
    if (rank->cpus.empty())
      rank->cpus = cpus;
  }
}

}  // namespace

// CPU ranks have no GPU to be near to, and go where the system puts them.
void bind_to_cpus(const Host& host, NumaBinding binding, std::span<RankPlan> ranks) {
  std::map<int, std::vector<RankPlan*>> by_node;
  for (RankPlan& rank : ranks) {
    if (!rank.device.is_gpu())
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
      bind_node(host, binding, node, its_ranks);
    }
  }
}

}  // namespace muster
