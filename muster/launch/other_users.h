// Finds other users' processes on GPUs that a job is about to use: leases are among the jobs of one
// user. Called by the launcher and `muster tasks`, before they start anything.
#pragma once

#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/device/inventory.h"
#include "muster/placement/plan.h"

namespace muster {

// A line for each of the host's GPUs in `wanted`, or with such an instance, on which other users'
// processes compute: "GPU 0 (GPU-8f3c…): in use by pid 4711 (python3, user alice, 12.3 GiB)". A
// process that cannot be seen here, one of another container, is another's. Shapes: the host probed
// with GpuDetail::processes.
Strings other_users_of(const Host& host, const std::vector<GpuUuid>& wanted);

// Warns of those on the GPUs of the plan's ranks on this host.
void warn_of_other_users(const Host& host, const Plan& plan, int host_index = 0);

}  // namespace muster
