// The c10d::PrefixStore puts a name before each key, so that groups do not read each other's.
#include "muster/comm/call/c10d_pointers.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace muster {

StorePtr store_part(const StorePtr& store, const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>(name, store);
}

}  // namespace muster
