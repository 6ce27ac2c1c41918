// This rank's ranges of a flat buffer as pieces of the model's tensors, for checkpoints. Used by
// sharded_optimizer.cc and fully_sharded.cc.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/tensor_pieces.h"
#include "muster/parallel/sharded/optimizer_parts.h"

namespace muster {

// A model's names for its parameters; several for a tied one.
class ParameterNames {
 public:
  explicit ParameterNames(const Module& model);
  // Throws: invalid_argument, in the name of `owner`, for a parameter that is not the model's.
  const Strings& of(const std::string& owner, const Tensor& parameter) const;

 private:
  std::map<const TensorImpl*, Strings> names_;
};

void add_flat_pieces(TensorPieces& to,
                     const std::string& owner,
                     const ParameterNames& names,
                     const OptimizerParts& parts);

}  // namespace muster
