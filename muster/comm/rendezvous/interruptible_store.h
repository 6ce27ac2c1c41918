// A view of a store whose waits can be broken off. For ranks that meet while one of them may die.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>

namespace muster {

// `check` is called before every operation and a few times a second in one that waits; what it
// throws ends it. That the store's server is gone is told as peer_failed: its host has died. From
// any thread.
c10::intrusive_ptr<c10d::Store> interruptible(c10::intrusive_ptr<c10d::Store> store,
                                              std::function<void()> check);

}  // namespace muster
