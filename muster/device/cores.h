// How many CPU cores this process may use: its affinity mask, and the CPU quota that a container or
// a batch system set. Called by probe.h; knows nothing of GPUs.
#pragma once

#include <string>

#include "muster/base/lists.h"

namespace muster {

// The CPUs of the affinity mask, in order. Empty when the kernel does not tell.
Ints usable_cpus();

// The cores of the affinity mask, or the tightest cgroup quota (v2 cpu.max, v1 cpu.cfs_quota_us)
// rounded up when that is less; at least 1. `root` holds proc/ and sys/; empty: this machine.
int usable_cores(const std::string& root = "");

}  // namespace muster
