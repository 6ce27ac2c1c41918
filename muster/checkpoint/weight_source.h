// A published file of weights, or several, open to be read one tensor at a time. Called by
// load_weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "muster/base/tensors.h"
#include "muster/checkpoint/model_state.h"

namespace muster {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The kinds of the tensors, without their places.
  virtual const TensorEntries& tensors() const = 0;
  // Whether it is of a kind that is read; a sparse one is not.
  virtual bool is_readable(const std::string& /*name*/) const { return true; }
  // Reads a tensor into contiguous memory of its own on the CPU. Throws: io; invalid_argument if
  // the file is damaged, and for a tensor that is not readable. Its name must be one of tensors().
  virtual Tensor read(const std::string& name) const = 0;
};

using WeightSourcePtr = std::unique_ptr<WeightSource>;

// Opens what a person or a hub calls a model: files as weight_files() finds them, or what
// torch.save has written (torch_file.h). `part`: the tensors of this part of a checkpoint in place
// of the model's (files/view.h); empty: the model's. Throws: as these do.
WeightSourcePtr open_weights(const std::string& path, const std::string& part);

}  // namespace muster
