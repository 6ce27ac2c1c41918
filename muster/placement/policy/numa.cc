// Ranks grouped by NUMA node: neighbours in rank share a node, nodes in their order, GPUs of a node
// in the order of the selection.
#include "muster/base/error.h"

#include <vector>

#include "muster/base/strings.h"
#include "muster/placement/policy/numa_groups.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

PolicyChoices choose_numa(const PolicyInput& input, int num_ranks) {
  std::vector<UsableGpu> order;
  Strings reasons;
  const auto groups = gpus_by_numa_node(input);
  // Without cores, nothing says that there is more than one node.
  const bool one_group = groups.size() == 1 && input.host.cores.empty();
  for (const auto& [node, places] : groups) {
    if (!node && !one_group) {
      throw invalid_argument("--policy numa: expected to know each GPU's NUMA node, got none for ",
                             label_of(input.host, input.gpus[places[0]]),
                             " of host ",
                             input.host.name,
                             "; --policy sequential needs none");
    }
    for (const size_t at : places) {
      order.push_back(input.gpus[at]);
      reasons.push_back(
          cat("numa: ", numa_label(node), ", ", reasons.size() + 1, " of ", input.gpus.size()));
    }
  }
  return in_turn(order, num_ranks, [&](size_t place) { return reasons[place]; });
}

}  // namespace

Policy numa_policy() {
  return {"numa", "ranks grouped by NUMA node", one_rank_per_gpu, choose_numa};
}

}  // namespace muster
