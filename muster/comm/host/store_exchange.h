// The ranks of a host find each other's memory through a c10d store. Inside of comm.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "muster/shm/meet.h"

namespace c10d {
class Store;
}

namespace muster {

// A carrier's ranks meet through it. A store may be used again: nothing is read there that was said
// before.
shm::Exchange exchange_over(const c10::intrusive_ptr<c10d::Store>& store,
                            int rank,
                            std::chrono::milliseconds timeout);

}  // namespace muster
