// CPU cores as Linux tells of them in /sys, for machines without hwloc's library. Called by
// probe.h.
#pragma once

#include <string>

#include "muster/base/lists.h"
#include "muster/device/inventory.h"

namespace muster {

// The cores of `cpus`, near ones together; where /sys does not tell of a CPU, it is a core of its
// own. The same as read_cpu_cores() for what both know. `sysroot`: a folder that holds sys/; empty:
// this machine's.
CpuCores read_sys_cores(const std::string& sysroot, const Ints& cpus);

}  // namespace muster
