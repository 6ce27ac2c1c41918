// Which GPUs of a host a job may use at all, before anything is selected: those that an inherited
// CUDA_VISIBLE_DEVICES shows and that are healthy. For the planner and the selection.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/device/inventory.h"

namespace muster {

struct UsableGpu {
  size_t position = 0;  // in Host::gpus
  CudaOrdinal ordinal;  // what a process that inherits the mask sees
  bool operator==(const UsableGpu&) const = default;
};

struct UsableGpus {
  std::vector<UsableGpu> gpus;    // in ordinal order
  std::vector<std::string> sick;  // "GPU 1: GPU is lost"
  std::string mask_note;          // what the mask hides; empty when nothing
};

UsableGpus usable_gpus(const Host& host, const std::optional<std::string>& mask);

// "host a has GPUs 0, 2 and 3; left out: GPU 1: GPU is lost", for errors.
std::string describe(const Host& host, const UsableGpus& usable);

}  // namespace muster
