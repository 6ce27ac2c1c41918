#include "muster/parallel/parameter_memory.h"

#include <cstddef>
#include <utility>

#include "muster/base/indices_of.h"

namespace muster {

ParameterMemory::ParameterMemory(Tensors parameters) : parameters_(std::move(parameters)) {
  remember();
}

// A weak pointer holds no memory, and no other storage gets its address.
void ParameterMemory::remember() {
  known_.clear();
  for (const Tensor& parameter : parameters_)
    known_.emplace_back(parameter.storage().getWeakStorageImpl());
}

bool ParameterMemory::is_other() const {
  for (const size_t i : indices_of(parameters_))
    if (parameters_[i].storage().unsafeGetStorageImpl() != known_[i]._unsafe_get_target())
      return true;
  return false;
}

}  // namespace muster
