// What machines there are: the one value type that every probe (NVML, captured files, simulated) fills in and
// that placement reads. No I/O here. A GPU's index, CUDA ordinal, UUID and PCI address are different things
// and so different types: the UUID is the identity, the index is only a name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster {

struct GpuIndex {  // the driver's number, in PCI order, as nvidia-smi prints it
  int value = 0;
  auto operator<=>(const GpuIndex&) const = default;
};

struct CudaOrdinal {  // the number a process sees after CUDA_VISIBLE_DEVICES
  int value = 0;
  auto operator<=>(const CudaOrdinal&) const = default;
};

struct GpuUuid {  // "GPU-8f3c…" or "MIG-…"
  std::string value = {};
  auto operator<=>(const GpuUuid&) const = default;
};

struct PciAddress {  // "0000:3b:00.0", lower case
  std::string value = {};
  auto operator<=>(const PciAddress&) const = default;
};

inline constexpr const char* kHealthy = "ok";

struct GpuProcess {
  int pid = 0;
  uint64_t used_memory_bytes = 0;
  bool operator==(const GpuProcess&) const = default;
};

struct Gpu {
  GpuIndex index = {};
  GpuUuid uuid = {};
  PciAddress pci = {};
  std::string model = {};  // "NVIDIA H100 80GB HBM3"
  uint64_t memory_total_bytes = 0;
  uint64_t memory_free_bytes = 0;
  std::optional<int> utilization_percent = {};
  std::optional<int> temperature_celsius = {};
  std::optional<double> power_watts = {};
  std::string compute_capability = {};  // "9.0"
  std::optional<int> numa_node = {};
  std::string health = kHealthy;  // or what is wrong; placement leaves such a GPU out
  std::vector<GpuProcess> processes = {};
  bool operator==(const Gpu&) const = default;
};

struct Host {
  std::string name = {};
  int num_cores = 1;  // that this process may use
  int cpu_slots = 2;  // CPU ranks to start when no GPU is used; a default, not a limit
  std::vector<Gpu> gpus = {};
  std::string driver_version = {};  // empty without a driver
  std::string gpu_note = {};        // why there are no GPUs, in one line; empty when there are
  bool operator==(const Host&) const = default;
};

struct Inventory {
  std::string source = {};  // "this machine", or the file it was read from
  bool simulated = false;
  std::vector<Host> hosts = {};
  bool operator==(const Inventory&) const = default;
};

}  // namespace muster
