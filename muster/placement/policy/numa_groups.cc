// Two ways of saying what is near what: by NUMA node, which a GPU says itself, and by PCIe switch,
// which only the links between GPUs say.
#include "muster/placement/policy/numa_groups.h"

#include "muster/base/indices_of.h"
#include "muster/device/links.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

std::map<std::optional<int>, Indices> gpus_by_numa_node(const PolicyInput& input) {
  std::map<std::optional<int>, Indices> groups;
  for (const size_t i : indices_of(input.gpus)) {
    groups[numa_node_of(input.host, gpu_of(input.host, input.gpus[i]))].push_back(i);
  }
  return groups;
}

Indices switch_of_gpus(const PolicyInput& input) {
  const auto joined = [&](size_t a, size_t b) {
    const Link* const link = gpu_link(input.host, a, b);
    return a == b || (link != nullptr && link->kind == LinkKind::pix);
  };
  // PIX is transitive, so looking at the first GPU of each switch is enough. Every GPU is joined
  // with itself, which ends the search.
  Indices switches = numbers_below(input.gpus.size());
  for (const size_t i : indices_of(switches)) {
    size_t first = 0;
    while (switches[first] != first || !joined(input.gpus[first].position, input.gpus[i].position))
      ++first;
    switches[i] = first;
  }
  return switches;
}

}  // namespace muster
