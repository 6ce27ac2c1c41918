// NVIDIA GPUs, as the driver's own library (NVML, libnvidia-ml.so.1) tells of them. The library is
// loaded when asked and never needed to build or to start. Called by probe.h; knows nothing of
// ranks or placement.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/device/gpu_detail.h"
#include "muster/device/inventory.h"

namespace muster {

struct NvmlOptions {
  GpuDetail detail = GpuDetail::placement;
  std::string library{};  // a file; empty: MUSTER_NVML_LIBRARY, else libnvidia-ml.so.1
  bool links = false;     // also how the GPUs are joined
  std::string sysroot{};  // the folder that holds sys/ and driver_files; empty: this machine's
  // Where none of these is there, no driver is loaded and the library is not even looked for. Not
  // asked when the library is named.
  Strings driver_files = {"/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg"};
};

struct NvmlReport {
  Gpus gpus{};  // in NVML's order, which is PCI order
  // links[i][j] joins gpus[i] and gpus[j], as far as NVML tells. Empty unless asked for.
  LinkMatrix links{};
  std::string driver_version{};  // "570.86.15"
  std::string note{};            // why there are no GPUs, in one line; empty when there are
  bool has_driver = true;        // or files of one
};

// Every GPU of this machine, with its MIG instances; a GPU that answers with an error is kept, with
// the error as its health, and so is one that takes no work (MIG mode with no instance). No driver,
// no library and no GPU are no errors: the report is empty and says why. Source: NVML API
// reference, the functions named in nvml_api.cc.
NvmlReport probe_nvml(const NvmlOptions& options = {});

}  // namespace muster
