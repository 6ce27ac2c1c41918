// muster's store as LibTorch's, so that c10d's process groups rendezvous through an authenticated
// store.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/store/store.h"

namespace muster {

// A c10d::Store that forwards to `store`. Blocking calls wait for `timeout` unless they bring their
// own.
c10::intrusive_ptr<c10d::Store> adapt_store(std::shared_ptr<Store> store,
                                            std::chrono::milliseconds timeout);

}  // namespace muster
