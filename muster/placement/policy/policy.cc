#include "muster/placement/policy/policy.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

std::span<const Policy> policies() {
  static const Policy kTable[] = {sequential_policy(),
                                  list_policy(),
                                  fastest_policy(),
                                  memory_policy(),
                                  topology_policy(),
                                  spread_policy(),
                                  pack_policy(),
                                  numa_policy(),
                                  mesh_policy()};
  return kTable;
}

const Policy& find_policy(std::string_view name) {
  const auto table = policies();
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Policy& p) { return p.name == name; });
  if (found != table.end())
    return *found;
  std::vector<std::string> names;
  for (const Policy& policy : table)
    names.emplace_back(policy.name);
  throw Error(
      ErrorCode::invalid_argument,
      printable(cat("--policy: expected one of ", join(names, ", "), ", got '", name, "'")));
}

int one_rank_per_gpu(const PolicyInput& input) {
  return static_cast<int>(input.gpus.size());
}

}  // namespace muster
