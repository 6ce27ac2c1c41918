// One host from what `nvidia-smi -q -x` printed. Called by read_inventory.h; pure.
#pragma once

#include <string>

#include "muster/device/inventory.h"

namespace muster {

// GPUs with all that the file says of them; their order in the file is their index. It says nothing
// of links, NUMA nodes or CPUs; compute capability is looked up by product. A MIG instance without
// a UUID gets the form that CUDA takes too, "MIG-GPU-<uuid>/<GPU instance>/<compute instance>". The
// host is named after the file, `source`. Throws: invalid_argument with the line, for what is not
// such a file. Source: nvidia-smi(1), nvsmi_device_v4.dtd to nvsmi_device_v13.dtd.
Host nvidia_smi_xml_host(const std::string& text, const std::string& source);

}  // namespace muster
