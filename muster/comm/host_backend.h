// A c10d::Backend over a Carrier: checks the calls of c10d and turns their tensors into plain memory on the
// host (shm_call.h). What shared memory and MPI have in common; it does not know which of them carries.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "muster/comm/carrier.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace muster {

// CPU tensors; others are copied to the host and back. `name` is what getBackendName() says.
c10::intrusive_ptr<c10d::Backend> make_host_backend(std::string name, int rank, int size,
                                                    std::chrono::milliseconds timeout,
                                                    std::unique_ptr<Carrier> carrier);

}  // namespace muster
