// Ranks as far apart as they can be: each next one on the NUMA node that has the fewest of them so
// far, there on the PCIe switch that has the fewest, there on the GPU that others use least. The
// further GPUs of a rank of several are as near to its earlier one as they can be.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/placement/policy/numa_groups.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

// Returns all devices in the order in which ranks take them.
Indices spread_order(const PolicyInput& input) {
  const Indices switches = switch_of_gpus(input);
  std::map<std::optional<int>, int> on_node;
  std::map<size_t, int> on_switch;
  Indices left = numbers_below(input.gpus.size());
  const auto node_of = [&](size_t at) {
    return gpu_of(input.host, input.gpus[at]).numa_node;
  };
  const auto switch_of = [&](size_t at) {
    return switches[at];
  };
  Indices order;
  const auto differs_from_rank = [&](size_t at, const auto& place_of) {
    const bool begins_rank = order.size() % input.request.gpus_per_rank == 0;
    return !begins_rank && place_of(at) != place_of(order.back());
  };
  const auto key = [&](size_t at) {
    return std::tuple(differs_from_rank(at, node_of),
                      differs_from_rank(at, switch_of),
                      on_node[node_of(at)],
                      on_switch[switch_of(at)],
                      load_of(input.host, input.gpus[at]),
                      at);
  };
  while (!left.empty()) {
    const auto best = std::ranges::min_element(left, {}, key);
    order.push_back(*best);
    ++on_node[node_of(*best)];
    ++on_switch[switch_of(*best)];
    left.erase(best);
  }
  return order;
}

PolicyChoices choose_spread(const PolicyInput& input, int num_ranks) {
  const auto order = gpus_in_order(input, spread_order(input));
  return in_turn(order, num_ranks, [&](size_t place) {
    return cat("spread: ", node_and_load_text(input.host, order[place]));
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
