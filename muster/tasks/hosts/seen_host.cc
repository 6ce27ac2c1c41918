// A GPU that is hidden stays in the host, so that positions are the same everywhere, but is marked
// as not healthy. A GPU with MIG keeps the instances that are seen.
#include "muster/tasks/hosts/seen_host.h"

#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/placement/selection/usable_gpus.h"

namespace muster {

Host seen_host(Host host, const VisibilityMasks& masks) {
  const UsableGpus usable = usable_gpus(host, masks);
  for (const size_t g : indices_of(host.gpus)) {
    Gpu& gpu = host.gpus[g];
    std::vector<MigInstance> seen;
    bool any = false;
    for (const UsableGpu& it : usable.gpus) {
      if (it.position != g)
        continue;
      any = true;
      if (it.is_instance())
        seen.push_back(gpu.mig[it.mig]);
    }
    if (any && gpu.mig_enabled)
      gpu.mig = std::move(seen);
    if (!any && gpu.health == kHealthy)
      gpu.health = "hidden from muster by its environment";
  }
  return host;
}

}  // namespace muster
