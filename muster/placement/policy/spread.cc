// Ranks as far apart as they can be: each next one on the NUMA node that has the fewest of them so
// far, there on the PCIe switch that has the fewest, there on the GPU that others use least.
#include <algorithm>
#include <map>
#include <tuple>

#include "muster/base/strings.h"
#include "muster/placement/policy/numa_groups.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

std::vector<size_t> spread_order(const PolicyInput& input) {
  const std::vector<size_t> switches = switch_of_gpus(input);
  std::map<std::optional<int>, int> on_node;
  std::map<size_t, int> on_switch;
  std::vector<size_t> left(input.gpus.size());
  for (size_t i = 0; i < left.size(); ++i)
    left[i] = i;
  const auto key = [&](size_t at) {
    return std::tuple(on_node[gpu_of(input.host, input.gpus[at]).numa_node],
                      on_switch[switches[at]],
                      load_of(input.host, input.gpus[at]),
                      at);
  };
  std::vector<size_t> order;
  while (!left.empty()) {
    const auto best = std::min_element(
        left.begin(), left.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
    order.push_back(*best);
    ++on_node[gpu_of(input.host, input.gpus[*best]).numa_node];
    ++on_switch[switches[*best]];
    left.erase(best);
  }
  return order;
}

std::vector<PolicyChoice> choose_spread(const PolicyInput& input, int num_ranks) {
  std::vector<UsableGpu> order;
  for (const size_t at : spread_order(input))
    order.push_back(input.gpus[at]);
  return in_turn(order, num_ranks, [&](size_t place) {
    return cat("spread: ",
               numa_label(gpu_of(input.host, order[place]).numa_node),
               ", ",
               load_of(input.host, order[place]).num_processes,
               " processes of others");
  });
}

}  // namespace

Policy spread_policy() {
  return {"spread",
          "ranks over all NUMA nodes and switches, least used GPUs first",
          one_rank_per_gpu,
          choose_spread};
}

}  // namespace muster
