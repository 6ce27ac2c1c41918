// What machines there are: the one value type that every probe (NVML, captured files, simulated)
// fills in and that placement reads. No I/O here. A GPU's index, CUDA ordinal, UUID and PCI address
// are different things and so different types: the UUID is the identity, the index is only a name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

struct GpuIndex {  // the driver's number, in PCI order, as nvidia-smi prints it
  int value = 0;
  auto operator<=>(const GpuIndex&) const = default;
};

struct CudaOrdinal {  // the number a process sees after CUDA_VISIBLE_DEVICES
  int value = 0;
  auto operator<=>(const CudaOrdinal&) const = default;
};

// What the UUID of an AMD GPU that has no id of its own begins with; its PCI address follows.
inline constexpr auto kNoUniqueId = "GPU-pci-";

struct GpuUuid {  // "GPU-8f3c…" or "MIG-…"
  std::string value{};
  // clang-tidy 14 takes the 0 that a comparison is made of for a pointer.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  auto operator<=>(const GpuUuid&) const = default;
};

struct PciAddress {  // "0000:3b:00.0", lower case
  std::string value{};
  auto operator<=>(const PciAddress&) const = default;
};

inline constexpr auto kHealthy = "ok";

enum class Vendor { nvidia, amd };

// How two devices of a host are joined. The PCI ones are spelled as `nvidia-smi topo -m` does.
enum class LinkKind {
  unknown,
  self,    // the same device
  nvlink,  // `count` NVLinks, straight or through a switch
  xgmi,    // `count` Infinity Fabric links
  pix,     // one PCIe switch between them
  pxb,     // several PCIe switches
  phb,     // a PCIe host bridge
  node,    // several host bridges of one NUMA node
  sys,     // across NUMA nodes
};

struct Link {
  LinkKind kind = LinkKind::unknown;
  int count = 0;  // of links, for nvlink and xgmi
  bool operator==(const Link&) const = default;
};

// links[i][j] joins the i-th device of one list and the j-th of another (or of the same) list.
using LinkMatrix = std::vector<std::vector<Link>>;

struct GpuProcess {
  int pid = 0;
  uint64_t used_memory_bytes = 0;
  bool operator==(const GpuProcess&) const = default;
};

struct MigInstance {
  GpuUuid uuid{};                   // "MIG-…"
  std::string profile{};            // "1g.10gb"
  uint64_t memory_total_bytes = 0;  // 0: not told
  bool operator==(const MigInstance&) const = default;
};

struct Gpu {
  GpuIndex index{};
  GpuUuid uuid{};
  PciAddress pci{};
  Vendor vendor = Vendor::nvidia;
  std::string model{};              // "NVIDIA H100 80GB HBM3"
  uint64_t memory_total_bytes = 0;  // 0: not told, as of a GPU that uses the machine's (GB10)
  uint64_t memory_free_bytes = 0;
  bool c2c = false;  // NVLink-C2C joins it and its CPU (GH200): each reaches the other's memory
  std::optional<int> utilization_percent{};
  std::optional<int> temperature_celsius{};
  std::optional<double> power_watts{};
  std::optional<double> power_limit_watts{};
  std::optional<uint64_t> ecc_uncorrected_errors =
      {};                       // since the driver loaded; nothing: ECC off or none
  bool repair_pending = false;  // rows or pages of its memory are to be replaced at the next reset
  std::string compute_capability{};      // "9.0"; AMD: "gfx90a"
  std::optional<int> pcie_generation{};  // the most that GPU and slot can do
  std::optional<int> pcie_width{};
  std::optional<int> numa_node{};
  std::string near_cpus{};   // "0-31,64-95"; empty: not known
  bool mig_enabled = false;  // then work runs on its instances only
  std::vector<MigInstance> mig{};
  std::string health = kHealthy;  // or what is wrong; placement leaves such a GPU out
  std::vector<GpuProcess> processes{};

  // Whether this is the GPU's UUID, or that of one of its instances.
  bool has(const GpuUuid& id) const {
    return uuid == id || std::ranges::find(mig, id, &MigInstance::uuid) != mig.end();
  }

  // Files may say that more is free than there is.
  uint64_t memory_used_bytes() const {
    return memory_total_bytes - std::min(memory_total_bytes, memory_free_bytes);
  }
  bool operator==(const Gpu&) const = default;
};
using Gpus = std::vector<Gpu>;

struct Nic {
  std::string name{};  // "mlx5_0"
  PciAddress pci{};
  std::optional<int> numa_node{};
  bool operator==(const Nic&) const = default;
};
using Nics = std::vector<Nic>;

struct CpuCore {  // one physical core
  Ints cpus{};    // the kernel's numbers of its hardware threads
  int numa_node = 0;
  int socket = 0;
  int l3 = 0;  // which last-level cache; numbered from 0 on each host
  bool operator==(const CpuCore&) const = default;
};
using CpuCores = std::vector<CpuCore>;

struct Host {
  std::string name{};
  int num_cores = 1;  // that this process may use
  int cpu_slots = 2;  // CPU ranks to start when no GPU is used; a default, not a limit
  CpuCores cores{};   // empty: not known
  Gpus gpus{};
  Nics nics{};
  // gpu_links[i][j] joins gpus[i] and gpus[j]; nic_links[i][k] joins gpus[i] and nics[k]. Empty:
  // not known.
  LinkMatrix gpu_links{};
  LinkMatrix nic_links{};
  std::string driver_version{};  // empty without a driver
  std::string gpu_note{};        // why there are no GPUs, in one line; empty when there are
  bool gpus_expected = false;    // a driver is there, and yet no GPU
  Strings notes{};               // what is to be known of the rest, a line each
  bool operator==(const Host&) const = default;
};

struct Inventory {
  std::string source{};  // "this machine", or the file it was read from
  bool simulated = false;
  std::vector<Host> hosts{};
  bool operator==(const Inventory&) const = default;
};

}  // namespace muster
