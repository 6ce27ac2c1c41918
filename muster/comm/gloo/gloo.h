// Makes LibTorch's Gloo backend, on the right network interface and with a deadline.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace muster {

// Gloo over `store`. The interface is GLOO_SOCKET_IFNAME when set, else the one that routes to
// `master_addr`; never simply the address that the host's name resolves to, which is loopback on
// many machines. Collective: connects all ranks. Throws: invalid_argument naming an interface that
// does not exist; backend_failed.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            int rank,
                                            int size,
                                            std::chrono::milliseconds timeout,
                                            const std::string& master_addr);

}  // namespace muster
