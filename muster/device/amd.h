// AMD GPUs, as the kernel's amdgpu and amdkfd drivers tell of them in sysfs: no library is needed.
// Called by probe.h; knows nothing of ranks or placement.
#pragma once

#include <string>

#include "muster/device/gpu_detail.h"
#include "muster/device/inventory.h"

namespace muster {

struct AmdOptions {
  GpuDetail detail = GpuDetail::placement;
  bool links = false;     // also how the GPUs are joined by Infinity Fabric
  std::string sysroot{};  // the folder that holds sys/; empty: this machine's
};

struct AmdReport {
  Gpus gpus{};
  // links[i][j] joins gpus[i] and gpus[j] by xGMI; other pairs are LinkKind::unknown. Empty unless
  // asked for.
  LinkMatrix links{};
  std::string driver_version{};  // of amdgpu, where the module tells
  std::string note{};            // why there are no GPUs though the driver is loaded, in one line
};

// The GPUs that this process may use, in the order in which ROCm's runtimes (ROCr, HIP) count them:
// that of KFD's nodes; Gpu::index counts from 0. The UUID is ROCm's "GPU-<16 hex digits>". A GPU
// with no unique id gets "GPU-pci-<address>", which only muster knows. With no driver the report is
// empty. Source: Linux, Documentation/gpu/amdgpu (sysfs) and
// drivers/gpu/drm/amd/amdkfd/kfd_topology.c (names of properties).
AmdReport probe_amd(const AmdOptions& options = {});

}  // namespace muster
