// Which host this process is on, for ranks to compare.
#pragma once

#include <string>

namespace muster {

// Equal where memory and devices can be shared: MUSTER_HOST_ID, or boot id + IPC and network
// namespaces.
std::string host_identity();

}  // namespace muster
