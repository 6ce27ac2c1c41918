// Ranks as near together as they can be: on the fewest NUMA nodes that hold them, and there on the
// most used GPUs first, so that what stays free stays whole.
#include <algorithm>
#include <utility>

#include "muster/base/strings.h"
#include "muster/placement/policy/numa_groups.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

using Group = std::vector<size_t>;  // places in PolicyInput::gpus

// The next node to fill: the smallest that holds all that are left to place or, when none does, the
// largest; of equals the one whose GPUs are used most.
size_t next_group(const PolicyInput& input, const std::vector<Group>& groups, size_t left) {
  const auto used = [&](const Group& group) {
    GpuLoad sum;
    for (const size_t at : group) {
      const GpuLoad load = load_of(input.host, input.gpus[at]);
      sum.num_processes += load.num_processes;
      sum.utilization_percent += load.utilization_percent;
      sum.used_memory_bytes += load.used_memory_bytes;
    }
    return sum;
  };
  const auto better = [&](const Group& a, const Group& b) {
    const bool a_holds = a.size() >= left;
    const bool b_holds = b.size() >= left;
    if (a_holds != b_holds)
      return a_holds;
    if (a.size() != b.size())
      return a_holds ? a.size() < b.size() : a.size() > b.size();
    return used(a) > used(b);
  };
  size_t best = 0;
  for (size_t i = 1; i < groups.size(); ++i) {
    if (better(groups[i], groups[best]))
      best = i;
  }
  return best;
}

std::vector<UsableGpu> pack_order(const PolicyInput& input, size_t count) {
  std::vector<Group> groups;
  for (auto& [node, places] : gpus_by_numa_node(input))
    groups.push_back(places);
  std::vector<UsableGpu> order;
  while (order.size() < count) {
    const size_t next = next_group(input, groups, count - order.size());
    Group group = std::move(groups[next]);
    groups.erase(groups.begin() + static_cast<ptrdiff_t>(next));
    std::stable_sort(group.begin(), group.end(), [&](size_t a, size_t b) {
      return load_of(input.host, input.gpus[a]) > load_of(input.host, input.gpus[b]);
    });
    for (const size_t at : group) {
      if (order.size() < count)
        order.push_back(input.gpus[at]);
    }
  }
  return order;
}

std::vector<PolicyChoice> choose_pack(const PolicyInput& input, int num_ranks) {
  const auto order = pack_order(input, std::min(static_cast<size_t>(num_ranks), input.gpus.size()));
  return in_turn(order, num_ranks, [&](size_t place) {
    return cat("pack: ",
               numa_label(gpu_of(input.host, order[place]).numa_node),
               ", ",
               load_of(input.host, order[place]).num_processes,
               " processes of others");
  });
}

}  // namespace

Policy pack_policy() {
  return {"pack",
          "ranks on the fewest NUMA nodes, most used GPUs first",
          one_rank_per_gpu,
          choose_pack};
}

}  // namespace muster
