// Which devices of a host a job may use at all, before anything is selected: the GPUs that an
// inherited CUDA_VISIBLE_DEVICES (AMD: ROCR_ and HIP_VISIBLE_DEVICES) shows and that are healthy,
// and of a GPU that is split by MIG its instances instead. For the planner and the selection.
#pragma once

#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"

namespace muster {

struct UsableGpu {
  size_t position = 0;  // in Host::gpus
  CudaOrdinal ordinal;  // what a process that inherits the mask sees; 0 for a MIG instance
  int mig = -1;         // which of Gpu::mig is meant; -1: the whole GPU
  bool is_instance() const { return mig >= 0; }
  bool operator==(const UsableGpu&) const = default;
};

using UsableGpuList = std::vector<UsableGpu>;

struct UsableGpus {
  std::vector<UsableGpu> gpus;  // in ordinal order; a GPU's instances one after the other
  Strings sick;                 // "GPU 1: GPU is lost"
  std::string mask_note;        // what the mask hides; "" if nothing
  bool mask_is_wrong = false;   // it names what is not there, or a GPU twice
};

// NVIDIA's GPUs come first, then AMD's, as each counts them.
UsableGpus usable_gpus(const Host& host, const VisibilityMasks& masks = {});

// Returns "host a has GPUs 0, 2, 3; left out: GPU 1: GPU is lost", for errors.
std::string describe(const Host& host, const UsableGpus& usable);

}  // namespace muster
