// What c10d's objects are held by.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>

namespace c10d {
class Backend;
class Store;
class Work;
}  // namespace c10d

namespace muster {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Keys of its own in the store.
StorePtr store_part(const StorePtr& store, const std::string& name);

}  // namespace muster
