// A c10d::Backend over a Carrier: checks the calls of c10d and turns their tensors into plain memory on the
// host (shm_call.h). What shared memory and MPI have in common; it does not know which of them carries.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "muster/comm/carrier.h"
#include "muster/shm/meet.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace muster {

// CPU tensors; others are copied to the host and back. `name` is what getBackendName() says.
c10::intrusive_ptr<c10d::Backend> make_host_backend(std::string name, int rank, int size,
                                                    std::chrono::milliseconds timeout,
                                                    std::unique_ptr<Carrier> carrier);

// Through which a carrier's ranks meet. Of a store that is used again, nothing is read that was said before.
shm::Exchange exchange_over(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                            std::chrono::milliseconds timeout);

}  // namespace muster
