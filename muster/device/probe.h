// What this machine has, found now: the live source of an Inventory. Called by the launcher, by
// programs that start their own ranks, and by `muster devices`; knows nothing of ranks or
// placement. To add a source (another vendor's GPUs), write it beside nvml.h and amd.h and call it
// in probe.cc.
#pragma once

#include <string>

#include "muster/device/gpu_detail.h"
#include "muster/device/inventory.h"
#include "muster/device/nvml.h"

namespace muster {

// Every "true" costs time before a job starts, so ask for what is needed.
struct ProbeOptions {
  int cpu_slots = 0;          // 0: MUSTER_CPU_SLOTS, else kDefaultCpuSlots
  bool gpus = true;           // false: do not look for GPUs, for jobs that want none
  GpuDetail detail{};         // of each GPU
  bool links = false;         // also Host::nics, gpu_links and nic_links: for the policy "topology"
  bool cpu_topology = false;  // also Host::cores: for binding
  std::string sysroot{};      // the folder with a captured machine's sys/; empty: this machine's
  NvmlOptions nvml{};         // its detail, links and sysroot are those above
};

inline constexpr int kDefaultCpuSlots = 2;

// One host: this one, with its cores, CPU slots and GPUs. NVIDIA's GPUs come first, by the driver's
// index. AMD's come after them, in ROCm's order, and their indices go on counting, so that an index
// names one GPU of the host: ROCm's own number is less by the number of NVIDIA GPUs. Without a
// driver it costs far less than a millisecond, otherwise what NVML takes to start. Without hwloc's
// library, cores are as /sys tells of them, and a note of the host says so. Throws:
// invalid_argument when cpu_slots or MUSTER_CPU_SLOTS is not a positive number.
Inventory probe_this_machine(const ProbeOptions& options = {});

}  // namespace muster
