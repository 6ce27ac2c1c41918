// muster's own backend: ranks of one host that share memory, as a c10d::Backend, so that the
// Reducer, sub-groups and whatever else speaks c10d can use it. Sums are formed in rank order: the
// same bits on every rank and in every run.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "muster/shm/team.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace muster {

// Collective: over the `size` ranks of one host and one user. CPU tensors; others are copied to the
// host and back. `names`: what errors call the ranks. Throws: timeout naming the missing ranks;
// unavailable where there is no memory for it.
c10::intrusive_ptr<c10d::Backend> make_shm(const c10::intrusive_ptr<c10d::Store>& store,
                                           int rank,
                                           int size,
                                           std::chrono::milliseconds timeout,
                                           RankNames names = {});

}  // namespace muster
