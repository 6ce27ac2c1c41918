// Makes LibTorch's Gloo backend, on the right network interface and with a deadline.
#pragma once

#include <chrono>
#include <string>

#include "muster/base/clock.h"
#include "muster/comm/call/c10d_pointers.h"

namespace muster {

// Gloo over `store`. The interface is GLOO_SOCKET_IFNAME when set, else the one that routes to
// `master_addr`; never simply the address that the host's name resolves to, which is loopback on
// many machines. Collective: connects all ranks. Throws: invalid_argument naming an interface that
// does not exist; backend_failed.
BackendPtr make_gloo(const StorePtr& store,
                     int rank,
                     int size,
                     milliseconds timeout,
                     const std::string& master_addr);

}  // namespace muster
