// GPU models that files name without telling more of them: the one table, with its sources. For the
// readers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "muster/device/inventory.h"

namespace muster {

inline constexpr uint32_t kPciVendorNvidia = 0x10de;
inline constexpr uint32_t kPciVendorAmd = 0x1002;

struct GpuModel {
  const char* name;     // as a fleet file says it: "H100-80GB"
  const char* product;  // as the driver says it: "NVIDIA H100 80GB HBM3"
  const char* family;   // what every product name of this kind holds: "H100", "RTX3080"
  Vendor vendor;
  uint64_t memory_gib;
  const char* compute_capability;
  int links;  // NVLinks of a GPU; AMD: xGMI links to each other GPU where all are joined
  int pcie_generation;
  uint32_t pci_id;  // vendor << 16 | device; 0: several
};

// The models that a fleet file can name.
std::span<const GpuModel> gpu_models();

// The model of a fleet file's name, in upper or lower case, with or without the memory where there
// is only one size. Null when unknown.
const GpuModel* find_gpu_model(std::string_view name);

const GpuModel* find_gpu_model_by_pci_id(uint32_t vendor, uint32_t device);

// The model that the driver calls exactly so: a name that only looks alike ("3080 Ti", "A40-12Q")
// is another product with other memory. Null also for a product that is sold in several sizes.
const GpuModel* find_gpu_model_by_product(std::string_view product);

// "8.0" for "NVIDIA A100-SXM4-80GB"; empty for unknown products.
std::string compute_capability_of(std::string_view product);

// Names, memory, capability and slot of `model`.
void apply_model(Gpu& gpu, const GpuModel& model);

}  // namespace muster
