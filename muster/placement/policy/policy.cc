// The table of all policies. Their order is that of help and of errors.
#include "muster/placement/policy/policy.h"

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"

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
  if (const Policy* const found = element_with(table, name, &Policy::name))
    return *found;
  const auto names = mapped(table, &Policy::name);
  throw invalid_argument(
      printable(cat("--policy: expected one of ", join(names, ", "), ", got '", name, "'")));
}

int one_rank_per_gpu(const PolicyInput& input) {
  return int_size(input.gpus);
}

std::vector<UsableGpu> gpus_in_order(const PolicyInput& input, const Indices& places) {
  return mapped(places, [&](const size_t place) { return input.gpus[place]; });
}

}  // namespace muster
