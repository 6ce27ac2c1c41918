// How NVIDIA GPUs are joined, asked through NVML: NVLinks and what PCI says. For nvml.cc alone.
#pragma once

#include <vector>

#include "muster/device/inventory.h"
#include "muster/device/nvml_api.h"

namespace muster::nvml {

// links[i][j] joins gpus[i] and gpus[j], whose handles are devices[i] and devices[j] (null: it has
// none). Two GPUs that have NVLinks to switches are joined by as many as the lesser has: all
// switches of a host make one fabric. What NVML does not tell is LinkKind::unknown.
LinkMatrix read_links(const Api& api, const std::vector<Device>& devices, const Gpus& gpus);

}  // namespace muster::nvml
