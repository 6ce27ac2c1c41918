// Ranks as near together as they can be: on the fewest NUMA nodes that hold them, and there on the
// most used GPUs first, so that what stays free stays whole.
#include <algorithm>
#include <functional>
#include <ranges>
#include <tuple>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/placement/policy/numa_groups.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

using Group = Indices;  // places in PolicyInput::gpus

GpuLoad load_of_group(const PolicyInput& input, const Group& group) {
  GpuLoad sum;
  for (const size_t at : group) {
    const GpuLoad load = load_of(input.host, input.gpus[at]);
    sum.num_processes += load.num_processes;
    sum.utilization_percent += load.utilization_percent;
    sum.used_memory_bytes += load.used_memory_bytes;
  }
  return sum;
}

// Returns the next node to fill: the smallest that holds all that are left to place or, when none
// does, the largest; of equals the one whose GPUs are used most.
auto next_group(const PolicyInput& input, std::vector<Group>& groups, int left) {
  return std::ranges::max_element(groups, {}, [&](const Group& group) {
    const int size = int_size(group);
    const bool holds_all = size >= left;
    return std::tuple(holds_all, holds_all ? -size : size, load_of_group(input, group));
  });
}

// Returns `count` of the devices, of which there are at least so many.
std::vector<UsableGpu> pack_order(const PolicyInput& input, int count) {
  const auto by_node = gpus_by_numa_node(input);
  const auto nodes = std::views::values(by_node);
  std::vector<Group> groups(nodes.begin(), nodes.end());
  Group order;
  while (int_size(order) < count) {
    const auto next = next_group(input, groups, count - int_size(order));
    std::ranges::stable_sort(
        *next, std::greater(), [&](size_t at) { return load_of(input.host, input.gpus[at]); });
    append_all(order, *next);
    groups.erase(next);
  }
  order.resize(count);
  return gpus_in_order(input, order);
}

// More ranks than GPUs go round the same order again.
PolicyChoices choose_pack(const PolicyInput& input, int num_ranks) {
  const auto order = pack_order(input, std::min(num_ranks, int_size(input.gpus)));
  return in_turn(order, num_ranks, [&](size_t place) {
    return cat("pack: ", node_and_load_text(input.host, order[place]));
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
