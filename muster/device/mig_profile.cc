#include "muster/device/mig_profile.h"

#include <cmath>

#include "muster/base/strings.h"

namespace muster {

std::string mig_profile_name(int compute_slices,
                             int gpu_slices,
                             uint64_t memory_bytes,
                             uint64_t gpu_memory_bytes) {
  if (gpu_slices < 1 || gpu_memory_bytes == 0)
    return "";
  constexpr double kParts = 8;
  constexpr double kGiB = 1U << 30U;
  const double share = static_cast<double>(memory_bytes) / static_cast<double>(gpu_memory_bytes);
  const double gpu_gib = std::ceil(static_cast<double>(gpu_memory_bytes) / kGiB);
  const long gib = std::lround(std::ceil(share * kParts) / kParts * gpu_gib);
  const bool part = compute_slices != gpu_slices;
  return cat(part ? cat(compute_slices, "c.") : "", gpu_slices, "g.", gib, "gb");
}

}  // namespace muster
