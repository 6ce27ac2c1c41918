// One host from what `nvidia-smi -q -x` printed. Called by read_inventory.h; pure.
#pragma once

#include <string>

#include "muster/device/inventory.h"

namespace muster {

// A host that is named after the file, `source`, with all that the file says of its GPUs: nothing
// of links, NUMA nodes or CPUs. A GPU's place in the file is its index; its compute capability is
// that of its product. A MIG instance without a UUID gets the form that CUDA takes too,
// "MIG-GPU-<uuid>/ <GPU instance>/<compute instance>". Throws: invalid_argument with the line, for
// what is not such a file. Source: nvidia-smi(1), nvsmi_device_v4.dtd to nvsmi_device_v13.dtd.
Host nvidia_smi_xml_host(const std::string& text, const std::string& source);

}  // namespace muster
