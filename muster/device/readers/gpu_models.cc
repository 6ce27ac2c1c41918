#include "muster/device/readers/gpu_models.h"

#include <cctype>

#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

// Sources: memory, NVLinks and PCIe from NVIDIA's data sheets and architecture whitepapers (P100,
// V100, A100, H100, H200, B200, GB200, and of each card) and AMD's CDNA, CDNA 2 and CDNA 3
// whitepapers (an MI250X is two devices, GCDs, of 64 GB each); data sheets say GB for what the
// driver reports as GiB. Compute capability: NVIDIA, "CUDA GPU Compute Capability"; AMD's targets:
// LLVM, "User Guide for AMDGPU Backend". PCI ids: the PCI ID repository, pci-ids.ucw.cz.
constexpr GpuModel make_model(Vendor vendor,
                              const char* name,
                              const char* product,
                              const char* family,
                              uint64_t memory_gib,
                              const char* compute_capability,
                              int links,
                              int pcie_generation,
                              uint32_t device) {
  const uint32_t pci_vendor = vendor == Vendor::amd ? kPciVendorAmd : kPciVendorNvidia;
  return {.name = name,
          .product = product,
          .family = family,
          .vendor = vendor,
          .memory_gib = memory_gib,
          .compute_capability = compute_capability,
          .links = links,
          .pcie_generation = pcie_generation,
          .pci_id = device == 0 ? 0 : pci_vendor << 16 | device};
}

// The arguments of these two are those of `make_model` after the vendor. A device of 0 stands for
// several PCI ids, or for one that is not known.
constexpr GpuModel nvidia(auto... facts) {
  return make_model(Vendor::nvidia, facts...);
}
constexpr GpuModel amd(auto... facts) {
  return make_model(Vendor::amd, facts...);
}

constexpr GpuModel kModels[] = {
    nvidia("P100-16GB", "Tesla P100-SXM2-16GB", "P100", 16, "6.0", 4, 3, 0x15f9),
    nvidia("V100-16GB", "Tesla V100-SXM2-16GB", "V100", 16, "7.0", 6, 3, 0x1db1),
    nvidia("V100-32GB", "Tesla V100-SXM2-32GB", "V100", 32, "7.0", 6, 3, 0x1db5),
    nvidia("V100-SXM3-32GB", "Tesla V100-SXM3-32GB", "V100", 32, "7.0", 6, 3, 0x1db8),
    nvidia("T4-16GB", "Tesla T4", "T4", 16, "7.5", 0, 3, 0x1eb8),
    nvidia("A100-40GB", "NVIDIA A100-SXM4-40GB", "A100", 40, "8.0", 12, 4, 0x20b0),
    nvidia("A100-80GB", "NVIDIA A100-SXM4-80GB", "A100", 80, "8.0", 12, 4, 0x20b2),
    nvidia("A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB", "A100", 40, "8.0", 12, 4, 0x20f1),
    nvidia("A100-PCIE-80GB", "NVIDIA A100 80GB PCIe", "A100", 80, "8.0", 12, 4, 0x20b5),
    nvidia("A30-24GB", "NVIDIA A30", "A30", 24, "8.0", 4, 4, 0x20b7),
    nvidia("A10-24GB", "NVIDIA A10", "A10", 24, "8.6", 0, 4, 0x2236),
    nvidia("A40-48GB", "NVIDIA A40", "A40", 48, "8.6", 4, 4, 0x2235),
    nvidia("RTXA6000-48GB", "NVIDIA RTX A6000", "RTXA6000", 48, "8.6", 4, 4, 0x2230),
    nvidia("RTX3080-10GB", "NVIDIA GeForce RTX 3080", "RTX3080", 10, "8.6", 0, 4, 0),
    nvidia("RTX3090-24GB", "NVIDIA GeForce RTX 3090", "RTX3090", 24, "8.6", 4, 4, 0x2204),
    nvidia("L4-24GB", "NVIDIA L4", "L4", 24, "8.9", 0, 4, 0x27b8),
    nvidia("L40-48GB", "NVIDIA L40", "L40", 48, "8.9", 0, 4, 0x26b5),
    nvidia("L40S-48GB", "NVIDIA L40S", "L40S", 48, "8.9", 0, 4, 0x26b9),
    nvidia("RTX4090-24GB", "NVIDIA GeForce RTX 4090", "RTX4090", 24, "8.9", 0, 4, 0x2684),
    nvidia("H100-80GB", "NVIDIA H100 80GB HBM3", "H100", 80, "9.0", 18, 5, 0x2330),
    nvidia("H100-PCIE-80GB", "NVIDIA H100 PCIe", "H100", 80, "9.0", 12, 5, 0x2331),
    nvidia("H200-141GB", "NVIDIA H200", "H200", 141, "9.0", 18, 5, 0x2335),
    nvidia("B200-180GB", "NVIDIA B200", "B200", 180, "10.0", 18, 5, 0x2901),
    nvidia("GB200-186GB", "NVIDIA GB200", "GB200", 186, "10.0", 18, 5, 0x2941),
    nvidia("RTX5090-32GB", "NVIDIA GeForce RTX 5090", "RTX5090", 32, "12.0", 0, 5, 0x2b85),
    amd("MI100-32GB", "AMD Instinct MI100", "MI100", 32, "gfx908", 1, 4, 0x738c),
    amd("MI210-64GB", "AMD Instinct MI210", "MI210", 64, "gfx90a", 1, 4, 0x740f),
    amd("MI250X-64GB", "AMD Instinct MI250X", "MI250X", 64, "gfx90a", 1, 4, 0x7408),
    amd("MI300X-192GB", "AMD Instinct MI300X", "MI300X", 192, "gfx942", 1, 5, 0x74a1),
};

// Models that other files name and a fleet file cannot.
constexpr GpuModel kOtherModels[] = {
    nvidia("", "Tesla P100-PCIE-12GB", "P100", 12, "6.0", 0, 3, 0x15f7),
    nvidia("", "Tesla P100-PCIE-16GB", "P100", 16, "6.0", 0, 3, 0x15f8),
    nvidia("", "Tesla V100-PCIE-16GB", "V100", 16, "7.0", 0, 3, 0x1db4),
    nvidia("", "Tesla V100-PCIE-32GB", "V100", 32, "7.0", 0, 3, 0x1db6),
    nvidia("", "NVIDIA A100-SXM-64GB", "A100", 64, "8.0", 12, 4, 0),
    nvidia("", "NVIDIA A800-SXM4-80GB", "A800", 80, "8.0", 8, 4, 0),
    nvidia("", "NVIDIA A10G", "A10G", 24, "8.6", 0, 4, 0x2237),
    nvidia("", "NVIDIA GeForce RTX 3080 Ti", "RTX3080", 12, "8.6", 0, 4, 0x2208),
    nvidia("", "NVIDIA GeForce RTX 3090 Ti", "RTX3090", 24, "8.6", 4, 4, 0x2203),
    nvidia("", "NVIDIA GeForce RTX 4090 Laptop GPU", "RTX4090", 16, "8.9", 0, 4, 0),
    nvidia("", "NVIDIA H100 NVL", "H100", 94, "9.0", 12, 5, 0x2321),
    nvidia("", "NVIDIA H20", "H20", 96, "9.0", 18, 5, 0x2329),
    nvidia("", "NVIDIA H200 NVL", "H200", 141, "9.0", 18, 5, 0x233b),
    nvidia("", "NVIDIA GH200 480GB", "GH200", 96, "9.0", 18, 5, 0x2342),
};

// Sold with 10 and with 12 GB under one name: a fleet file says which, a driver does not.
constexpr std::string_view kOfSeveralSizes[] = {"NVIDIA GeForce RTX 3080"};

// Drivers before 470 left "NVIDIA" away, so names are compared without it.
std::string_view without_vendor(std::string_view product) {
  constexpr std::string_view kVendor = "NVIDIA ";
  return product.starts_with(kVendor) ? product.substr(kVendor.size()) : product;
}

// Returns the text in capitals, with "RTX 3080" in one word.
std::string normal(std::string_view text) {
  std::string out;
  for (const unsigned char c : text) {
    if (c == ' ' && out.ends_with("RTX"))
      continue;
    out += static_cast<char>(std::toupper(c));
  }
  return out;
}

// "A100" is in "NVIDIA A100-SXM4" and not in "A1000": what follows is neither a digit nor a letter
// that makes it another model. A "B200" in "GB200" is another model too.
bool holds_family(const std::string& product, std::string_view family) {
  constexpr std::string_view kLongerNames = "0123456789XS";
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const auto text = cat(" ", product, " ");
  for (size_t at = text.find(family); at != npos; at = text.find(family, at + 1)) {
    const bool is_longer = contains(kLongerNames, text[at + family.size()]);
    const bool is_other = contains(kLetters, text[at - 1]);
    if (!is_longer && !is_other)
      return true;
  }
  return false;
}

template <class Condition>
const GpuModel* find_in_tables(const Condition& condition) {
  const GpuModel* const first = element_where(kModels, condition);
  return first != nullptr ? first : element_where(kOtherModels, condition);
}

}  // namespace

std::span<const GpuModel> gpu_models() {
  return kModels;
}

// A family alone will do where only one model is of it: "H200", but not "A100".
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
  const bool has_several_sizes = any_of(
      kOfSeveralSizes, [&](std::string_view several) { return wanted == without_vendor(several); });
  if (has_several_sizes)
    return nullptr;
  return find_in_tables(
      [&](const GpuModel& model) { return without_vendor(model.product) == wanted; });
}

// A product is known by its family even where the product itself is in no table.
std::string compute_capability_of(std::string_view product) {
  const std::string wanted = normal(product);
  for (const GpuModel& model : kModels) {
    if (holds_family(wanted, model.family))
      return model.compute_capability;
  }
  return {};
}

// Slots of all these models have sixteen lanes.
void apply_model(Gpu& gpu, const GpuModel& model) {
  gpu.vendor = model.vendor;
  gpu.model = model.product;
  gpu.memory_total_bytes = model.memory_gib << 30U;
  gpu.memory_free_bytes = gpu.memory_total_bytes;
  gpu.compute_capability = model.compute_capability;
  gpu.pcie_generation = model.pcie_generation;
  gpu.pcie_width = 16;
}

}  // namespace muster
