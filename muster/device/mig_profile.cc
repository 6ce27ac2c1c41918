// A GPU's memory is cut into eighths. Profiles are named after the GPU's memory in GiB, rounded up,
// times the eighths that the part has, rounded up too: 4.75 of 39.5 GiB make "1g.5gb".
#include "muster/device/mig_profile.h"

#include <cmath>

#include "muster/base/strings.h"

namespace muster {

std::string mig_profile_name(unsigned compute_slices,
                             unsigned gpu_slices,
                             uint64_t memory_bytes,
                             uint64_t gpu_memory_bytes) {
  if (gpu_slices == 0 || gpu_memory_bytes == 0)
    return "";
  constexpr double kParts = 8;
  constexpr double kGiB = 1U << 30U;
  const auto gpu_bytes = static_cast<double>(gpu_memory_bytes);
  const double share = static_cast<double>(memory_bytes) / gpu_bytes;
  const double gpu_gib = std::ceil(gpu_bytes / kGiB);
  const long gib = std::lround(std::ceil(share * kParts) / kParts * gpu_gib);
  const auto profile = cat(gpu_slices, "g.", gib, "gb");
  return compute_slices == gpu_slices ? profile : cat(compute_slices, "c.", profile);
}

}  // namespace muster
