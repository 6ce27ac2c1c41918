// Notices that parameters were given other memory, and with it other values. For the classes of
// this folder that keep what the values were.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

#include "muster/base/tensors.h"

namespace muster {

// Where parameters have their values. torch::load, vector_to_parameters and others give them other
// memory, and with it other values.
class ParameterMemory {
 public:
  explicit ParameterMemory(Tensors parameters);
  bool is_other() const;  // than it was when this was made or last remembered
  void remember();
  const Tensors& parameters() const { return parameters_; }

 private:
  Tensors parameters_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> known_;
};

}  // namespace muster
