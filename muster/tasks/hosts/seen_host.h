// A host with what an environment hides marked as not to be used: so that who places tasks on
// several hosts need not know each one's variables. For the server, and for the command where this
// machine is one of several. Pure.
#pragma once

#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"

namespace muster {

Host seen_host(Host host, const VisibilityMasks& masks);

}  // namespace muster
