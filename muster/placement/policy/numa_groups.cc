#include "muster/placement/policy/numa_groups.h"

#include "muster/base/strings.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

std::map<std::optional<int>, std::vector<size_t>> gpus_by_numa_node(const PolicyInput& input) {
  std::map<std::optional<int>, std::vector<size_t>> groups;
  for (size_t i = 0; i < input.gpus.size(); ++i) {
    groups[numa_node_of(input.host, gpu_of(input.host, input.gpus[i]))].push_back(i);
  }
  return groups;
}

std::vector<size_t> switch_of_gpus(const PolicyInput& input) {
  const auto& links = input.host.gpu_links;
  const auto joined = [&](size_t a, size_t b) {
    if (a == b)
      return true;
    return a < links.size() && b < links[a].size() && links[a][b].kind == LinkKind::pix;
  };
  // PIX is transitive, so looking at the first of each switch is enough.
  std::vector<size_t> switches(input.gpus.size());
  for (size_t i = 0; i < switches.size(); ++i) {
    switches[i] = i;
    for (size_t first = 0; first < i; ++first) {
      if (switches[first] != first || !joined(input.gpus[first].position, input.gpus[i].position))
        continue;
      switches[i] = first;
      break;
    }
  }
  return switches;
}

std::string numa_label(const std::optional<int>& node) {
  return node ? cat("NUMA node ", *node) : "NUMA node not known";
}

}  // namespace muster
