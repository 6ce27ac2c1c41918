#include "muster/device/readers/gpu_models.h"

#include <algorithm>
#include <cctype>

#include "muster/base/strings.h"

namespace muster {
namespace {

// Sources: memory, NVLinks and PCIe from NVIDIA's data sheets and architecture whitepapers (P100,
// V100, A100, H100, H200, B200, GB200, and of each card) and AMD's CDNA, CDNA 2 and CDNA 3
// whitepapers (an MI250X is two devices, GCDs, of 64 GB each); data sheets say GB for what the
// driver reports as GiB. Compute capability: NVIDIA, "CUDA GPU Compute Capability"; AMD's targets:
// LLVM, "User Guide for AMDGPU Backend". PCI ids: the PCI ID repository, pci-ids.ucw.cz.
constexpr uint32_t nv(uint32_t device) {
  return kPciVendorNvidia << 16 | device;
}
constexpr uint32_t amd(uint32_t device) {
  return kPciVendorAmd << 16 | device;
}

constexpr GpuModel kModels[] = {
    {"P100-16GB", "Tesla P100-SXM2-16GB", "P100", Vendor::nvidia, 16, "6.0", 4, 3, nv(0x15f9)},
    {"V100-16GB", "Tesla V100-SXM2-16GB", "V100", Vendor::nvidia, 16, "7.0", 6, 3, nv(0x1db1)},
    {"V100-32GB", "Tesla V100-SXM2-32GB", "V100", Vendor::nvidia, 32, "7.0", 6, 3, nv(0x1db5)},
    {"V100-SXM3-32GB", "Tesla V100-SXM3-32GB", "V100", Vendor::nvidia, 32, "7.0", 6, 3, nv(0x1db8)},
    {"T4-16GB", "Tesla T4", "T4", Vendor::nvidia, 16, "7.5", 0, 3, nv(0x1eb8)},
    {"A100-40GB", "NVIDIA A100-SXM4-40GB", "A100", Vendor::nvidia, 40, "8.0", 12, 4, nv(0x20b0)},
    {"A100-80GB", "NVIDIA A100-SXM4-80GB", "A100", Vendor::nvidia, 80, "8.0", 12, 4, nv(0x20b2)},
    {"A100-PCIE-40GB",
     "NVIDIA A100-PCIE-40GB",
     "A100",
     Vendor::nvidia,
     40,
     "8.0",
     12,
     4,
     nv(0x20f1)},
    {"A100-PCIE-80GB",
     "NVIDIA A100 80GB PCIe",
     "A100",
     Vendor::nvidia,
     80,
     "8.0",
     12,
     4,
     nv(0x20b5)},
    {"A30-24GB", "NVIDIA A30", "A30", Vendor::nvidia, 24, "8.0", 4, 4, nv(0x20b7)},
    {"A10-24GB", "NVIDIA A10", "A10", Vendor::nvidia, 24, "8.6", 0, 4, nv(0x2236)},
    {"A40-48GB", "NVIDIA A40", "A40", Vendor::nvidia, 48, "8.6", 4, 4, nv(0x2235)},
    {"RTXA6000-48GB", "NVIDIA RTX A6000", "RTXA6000", Vendor::nvidia, 48, "8.6", 4, 4, nv(0x2230)},
    {"RTX3080-10GB", "NVIDIA GeForce RTX 3080", "RTX3080", Vendor::nvidia, 10, "8.6", 0, 4, 0},
    {"RTX3090-24GB",
     "NVIDIA GeForce RTX 3090",
     "RTX3090",
     Vendor::nvidia,
     24,
     "8.6",
     4,
     4,
     nv(0x2204)},
    {"L4-24GB", "NVIDIA L4", "L4", Vendor::nvidia, 24, "8.9", 0, 4, nv(0x27b8)},
    {"L40-48GB", "NVIDIA L40", "L40", Vendor::nvidia, 48, "8.9", 0, 4, nv(0x26b5)},
    {"L40S-48GB", "NVIDIA L40S", "L40S", Vendor::nvidia, 48, "8.9", 0, 4, nv(0x26b9)},
    {"RTX4090-24GB",
     "NVIDIA GeForce RTX 4090",
     "RTX4090",
     Vendor::nvidia,
     24,
     "8.9",
     0,
     4,
     nv(0x2684)},
    {"H100-80GB", "NVIDIA H100 80GB HBM3", "H100", Vendor::nvidia, 80, "9.0", 18, 5, nv(0x2330)},
    {"H100-PCIE-80GB", "NVIDIA H100 PCIe", "H100", Vendor::nvidia, 80, "9.0", 12, 5, nv(0x2331)},
    {"H200-141GB", "NVIDIA H200", "H200", Vendor::nvidia, 141, "9.0", 18, 5, nv(0x2335)},
    {"B200-180GB", "NVIDIA B200", "B200", Vendor::nvidia, 180, "10.0", 18, 5, nv(0x2901)},
    {"GB200-186GB", "NVIDIA GB200", "GB200", Vendor::nvidia, 186, "10.0", 18, 5, nv(0x2941)},
    {"RTX5090-32GB",
     "NVIDIA GeForce RTX 5090",
     "RTX5090",
     Vendor::nvidia,
     32,
     "12.0",
     0,
     5,
     nv(0x2b85)},
    {"MI100-32GB", "AMD Instinct MI100", "MI100", Vendor::amd, 32, "gfx908", 1, 4, amd(0x738c)},
    {"MI210-64GB", "AMD Instinct MI210", "MI210", Vendor::amd, 64, "gfx90a", 1, 4, amd(0x740f)},
    {"MI250X-64GB", "AMD Instinct MI250X", "MI250X", Vendor::amd, 64, "gfx90a", 1, 4, amd(0x7408)},
    {"MI300X-192GB",
     "AMD Instinct MI300X",
     "MI300X",
     Vendor::amd,
     192,
     "gfx942",
     1,
     5,
     amd(0x74a1)},
};

// What files name and a fleet cannot.
constexpr GpuModel kOtherModels[] = {
    {"", "Tesla P100-PCIE-12GB", "P100", Vendor::nvidia, 12, "6.0", 0, 3, nv(0x15f7)},
    {"", "Tesla P100-PCIE-16GB", "P100", Vendor::nvidia, 16, "6.0", 0, 3, nv(0x15f8)},
    {"", "Tesla V100-PCIE-16GB", "V100", Vendor::nvidia, 16, "7.0", 0, 3, nv(0x1db4)},
    {"", "Tesla V100-PCIE-32GB", "V100", Vendor::nvidia, 32, "7.0", 0, 3, nv(0x1db6)},
    {"", "NVIDIA A100-SXM-64GB", "A100", Vendor::nvidia, 64, "8.0", 12, 4, 0},
    {"", "NVIDIA A800-SXM4-80GB", "A800", Vendor::nvidia, 80, "8.0", 8, 4, 0},
    {"", "NVIDIA A10G", "A10G", Vendor::nvidia, 24, "8.6", 0, 4, nv(0x2237)},
    {"", "NVIDIA GeForce RTX 3080 Ti", "RTX3080", Vendor::nvidia, 12, "8.6", 0, 4, nv(0x2208)},
    {"", "NVIDIA GeForce RTX 3090 Ti", "RTX3090", Vendor::nvidia, 24, "8.6", 4, 4, nv(0x2203)},
    {"", "NVIDIA GeForce RTX 4090 Laptop GPU", "RTX4090", Vendor::nvidia, 16, "8.9", 0, 4, 0},
    {"", "NVIDIA H100 NVL", "H100", Vendor::nvidia, 94, "9.0", 12, 5, nv(0x2321)},
    {"", "NVIDIA H20", "H20", Vendor::nvidia, 96, "9.0", 18, 5, nv(0x2329)},
    {"", "NVIDIA H200 NVL", "H200", Vendor::nvidia, 141, "9.0", 18, 5, nv(0x233b)},
    {"", "NVIDIA GH200 480GB", "GH200", Vendor::nvidia, 96, "9.0", 18, 5, nv(0x2342)},
};

// Sold with 10 and with 12 GB under one name: a fleet file says which, a driver does not.
constexpr std::string_view kOfSeveralSizes[] = {"NVIDIA GeForce RTX 3080"};

// Drivers before 470 left "NVIDIA" away.
std::string_view without_vendor(std::string_view product) {
  constexpr std::string_view kVendor = "NVIDIA ";
  return product.starts_with(kVendor) ? product.substr(kVendor.size()) : product;
}

bool is_product(const GpuModel& model, std::string_view product) {
  return without_vendor(model.product) == product;
}

// In capitals, and "RTX 3080" in one word.
std::string normal(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ' && out.ends_with("RTX"))
      continue;
    out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

// "A100" is in "NVIDIA A100-SXM4" and not in "A1000": what follows is neither a digit nor a letter
// that makes it another model. A "B200" in "GB200" is another model too.
bool holds_family(const std::string& product, std::string_view family) {
  for (size_t at = product.find(family); at != std::string::npos;
       at = product.find(family, at + 1)) {
    const char after = at + family.size() < product.size() ? product[at + family.size()] : ' ';
    const bool longer =
        std::isdigit(static_cast<unsigned char>(after)) != 0 || after == 'X' || after == 'S';
    const bool other = at > 0 && std::isalpha(static_cast<unsigned char>(product[at - 1])) != 0;
    if (!longer && !other)
      return true;
  }
  return false;
}

template <class Condition>
const GpuModel* find_in_tables(const Condition& condition) {
  const auto first = std::find_if(std::begin(kModels), std::end(kModels), condition);
  if (first != std::end(kModels))
    return &*first;
  const auto other = std::find_if(std::begin(kOtherModels), std::end(kOtherModels), condition);
  return other == std::end(kOtherModels) ? nullptr : &*other;
}

}  // namespace

std::span<const GpuModel> gpu_models() {
  return kModels;
}

const GpuModel* find_gpu_model(std::string_view name) {
  const std::string wanted = normal(name);
  const GpuModel* only = nullptr;
  int of_family = 0;
  for (const GpuModel& model : kModels) {
    if (wanted == model.name)
      return &model;
    if (wanted != model.family)
      continue;
    only = &model;
    ++of_family;
  }
  return of_family == 1 ? only : nullptr;
}

const GpuModel* find_gpu_model_by_pci_id(uint32_t vendor, uint32_t device) {
  return find_in_tables([&](const GpuModel& model) {
    return model.pci_id != 0 && model.pci_id == (vendor << 16U | device);
  });
}

const GpuModel* find_gpu_model_by_product(std::string_view product) {
  const std::string_view wanted = without_vendor(product);
  for (const std::string_view several : kOfSeveralSizes) {
    if (wanted == without_vendor(several))
      return nullptr;
  }
  return find_in_tables([&](const GpuModel& model) { return is_product(model, wanted); });
}

std::string compute_capability_of(std::string_view product) {
  const std::string wanted = normal(product);
  for (const GpuModel& model : kModels) {
    if (holds_family(wanted, model.family))
      return model.compute_capability;
  }
  return {};
}

void apply_model(Gpu& gpu, const GpuModel& model) {
  gpu.vendor = model.vendor;
  gpu.model = model.product;
  gpu.memory_total_bytes = gpu.memory_free_bytes = static_cast<uint64_t>(model.memory_gib) << 30U;
  gpu.compute_capability = model.compute_capability;
  gpu.pcie_generation = model.pcie_generation;
  gpu.pcie_width = 16;
}

}  // namespace muster
