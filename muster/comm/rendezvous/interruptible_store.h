// A view of a store whose waits can be broken off, for ranks that meet while one of them may die.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/base/functions.h"
#include "muster/comm/call/c10d_pointers.h"

namespace muster {

// `check` is called before every operation and a few times a second in one that waits; an exception
// of it ends the operation. Where the store's server is gone, operations throw peer_failed: its
// host has died. Any thread may use the view.
StorePtr interruptible(StorePtr store, Callback check);

}  // namespace muster
