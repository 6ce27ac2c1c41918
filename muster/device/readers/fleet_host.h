// One invented host of a fleet file, from its few numbers. For fleet_toml.cc; pure.
#pragma once

#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/device/inventory.h"
#include "muster/device/readers/gpu_models.h"

namespace muster {

enum class NvlinkLayout { none, all, pairs, matrix };

struct FleetHost {
  std::vector<const GpuModel*> gpus{};
  NvlinkLayout nvlink = NvlinkLayout::none;
  LinkMatrix matrix{};  // nvlink == matrix; unknown links are filled in
  int numa = 1;
  int cores = 0;  // 0: not told
  int cpu_slots = 2;
  Strings nics{};
};

// A host without a name and UUIDs, which is the same for all hosts of an entry.
Host invent_host(const FleetHost& wanted);

// `host` with a name, and UUIDs made from it for GPUs that have none.
Host named_host(const Host& host, const std::string& name);

}  // namespace muster
