// muster's own backend: ranks of one host that share memory, as a c10d::Backend, so that the
// Reducer, sub-groups and whatever else speaks c10d can use it. Sums are formed in rank order: the
// same bits on every rank and in every run.
#pragma once

#include <chrono>

#include "muster/base/clock.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/shm/team.h"

namespace muster {

// Collective: over the `size` ranks of one host and one user. CPU tensors; others are copied to the
// host and back. `names`: what errors call the ranks. Throws: timeout naming the missing ranks;
// unavailable where there is no memory for it.
BackendPtr make_shm(
    const StorePtr& store, int rank, int size, milliseconds timeout, RankNames names = {});

}  // namespace muster
