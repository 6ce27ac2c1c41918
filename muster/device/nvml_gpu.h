// One NVIDIA GPU, asked through NVML. For nvml.cc alone.
#pragma once

#include <string>

#include "muster/device/gpu_detail.h"
#include "muster/device/inventory.h"
#include "muster/device/nvml_api.h"

namespace muster::nvml {

// Everything that `detail` wants of the GPU behind `device`; an error becomes its health.
Gpu read_gpu(const Api& api, Device device, GpuDetail detail, const std::string& sysroot);

}  // namespace muster::nvml
