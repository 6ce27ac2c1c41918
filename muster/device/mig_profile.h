// What NVIDIA calls a part of a GPU: "1g.10gb". For NVML's probe and for the reader of nvidia-smi's
// XML.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

// `compute_slices` differs from `gpu_slices` where several compute instances share the part:
// "1c.3g.40gb". The memory in the name is not the part's size rounded, but as many eighths of the
// GPU's as it has. Empty when that is not known. Source: NVIDIA MIG User Guide, "Supported MIG
// Profiles".
std::string mig_profile_name(unsigned compute_slices,
                             unsigned gpu_slices,
                             uint64_t memory_bytes,
                             uint64_t gpu_memory_bytes);

}  // namespace muster
