// What a rank runs on, for its activity file, and so for run.json and `muster report`: LibTorch's version,
// the group's backend, and what its device is called.
#pragma once

#include "muster/comm/process_group.h"
#include "muster/placement/plan.h"

namespace muster {

// Nothing where this process writes no activity file.
void tell_software(const ProcessGroup& group, const DeviceAssignment& device);

}  // namespace muster
