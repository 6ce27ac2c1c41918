// What c10d's objects are held by.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

namespace c10::ivalue {
struct Future;
}

namespace c10d {
class Backend;
class Store;
class Work;
}  // namespace c10d

namespace muster {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
using StoreBytes = std::vector<uint8_t>;  // a value, as c10d's store has it

// Keys of its own in the store.
StorePtr store_part(const StorePtr& store, const std::string& name);

}  // namespace muster
