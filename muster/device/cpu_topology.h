// This machine's CPU cores: their hardware threads, NUMA node, socket and last-level cache. Called
// by probe.h where somebody wants to bind ranks or to see the machine; knows nothing of GPUs.
#pragma once

#include "muster/device/inventory.h"

namespace muster {

// The cores that this process may use (its affinity mask and cpuset), in hwloc's order: near ones
// together. Where there is no last-level cache that the kernel knows of, CpuCore::l3 counts
// sockets. hwloc is loaded here and not before, because a launcher that binds nothing should not
// wait for it. Blocking: a millisecond, on big machines some tens. Throws: unavailable when hwloc's
// library is missing or cannot read the machine. Source: hwloc 2 API.
CpuCores read_cpu_cores();

}  // namespace muster
