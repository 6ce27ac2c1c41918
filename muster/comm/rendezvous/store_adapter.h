// muster's store as LibTorch's, so that c10d's process groups rendezvous through an authenticated
// store.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/base/clock.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/store/store.h"

namespace muster {

// A c10d::Store that forwards to `store`. Blocking calls wait for `timeout` unless they bring their
// own.
StorePtr adapt_store(std::shared_ptr<Store> store, milliseconds timeout);

}  // namespace muster
