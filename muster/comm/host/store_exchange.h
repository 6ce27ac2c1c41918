// The ranks of a host find each other's memory through a c10d store. Inside of comm.
#pragma once

#include <chrono>

#include "muster/base/clock.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/shm/meet.h"

namespace muster {

// A carrier's ranks meet through it. A store may be used again: nothing is read there that was said
// before.
shm::Exchange exchange_over(const StorePtr& store, int rank, milliseconds timeout);

}  // namespace muster
