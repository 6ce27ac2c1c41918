// Records a rank's software in its activity file, for run.json and `muster report`: LibTorch's
// version, the group's backend, the name of its device.
#pragma once

#include "muster/comm/process_group.h"
#include "muster/placement/plan.h"

namespace muster {

// Does nothing if this process writes no activity file.
void tell_software(const ProcessGroup& group, const DeviceAssignment& device);

}  // namespace muster
