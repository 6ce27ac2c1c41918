// What this machine has, found now: the live source of an Inventory. Called by the launcher, by programs that
// start their own ranks, and by `muster devices`; knows nothing of ranks or placement. To add a source
// (another vendor's GPUs), write it beside nvml.h and call it in probe.cc.
#pragma once

#include "muster/device/cores.h"
#include "muster/device/inventory.h"
#include "muster/device/nvml.h"

namespace muster {

struct ProbeOptions {
  int cpu_slots = 0;  // 0: MUSTER_CPU_SLOTS, else kDefaultCpuSlots
  bool gpus = true;   // false: do not look for GPUs, for jobs that want none
  NvmlOptions nvml = {};
  CoresOptions cores = {};
};

inline constexpr int kDefaultCpuSlots = 2;

// One host: this one, with its cores, CPU slots and GPUs. Costs far less than a millisecond where there is no
// NVIDIA driver; else what NVML takes to start.
// Throws: invalid_argument when cpu_slots or MUSTER_CPU_SLOTS is not a positive number.
Inventory probe_this_machine(const ProbeOptions& options = {});

}  // namespace muster
