// The source of trained parameters: a module, a scripted module, or a plain list. Everything that
// DistributedDataParallel asks of a model of any kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/options.h"

namespace muster {

class ModelSource {
 public:
  using Visit = std::function<void(const Tensor&)>;

  virtual ~ModelSource() = default;
  // Items are in registration order; a tensor shared by two modules occurs as often as in the
  // model. None is undefined.
  virtual ModelTensors parameters() const = 0;
  virtual ModelTensors buffers() const = 0;
  // Visits the same parameters, without names. Must be cheap: every forward calls it.
  virtual void for_each_parameter(const Visit& visit) const = 0;
  // The parameters whose gradients are sparse tensors.
  virtual TensorImpls sparse() const { return {}; }
  // Whether it is one of ignored_parameters: not a parameter here, although the model has it.
  virtual bool ignores(const Tensor& /*tensor*/) const { return false; }
  virtual bool is_training() const = 0;
  // Names under which layers compute with other tensors than are registered (layer_members.h).
  virtual Strings assigned() const { return {}; }
  // Weights that forwards write to (renormalized.h).
  virtual ModelTensors renormalized() const { return {}; }
};

using ModelSourcePtr = std::shared_ptr<const ModelSource>;

ModelSourcePtr source_of(ModulePtr model);
ModelSourcePtr source_of(torch::jit::Module model);
ModelSourcePtr source_of(ModelTensors parameters);

// `source` without some parameters and buffers. Throws: invalid_argument for one that it does not
// have.
ModelSourcePtr without_ignored(ModelSourcePtr source, const std::vector<IgnoredParameter>& ignored);

}  // namespace muster
