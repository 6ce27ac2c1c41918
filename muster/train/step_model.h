// A model as a training step sees it: its parameters by name and, if it is wrapped, what reduces
// its gradients. Made from a DistributedDataParallel, a module, or a module holder. Used by step.h.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <initializer_list>
#include <memory>
#include <vector>

#include "muster/base/mapped.h"
#include "muster/ddp/distributed_data_parallel.h"

namespace muster {

class StepModel {
 public:
  template <class Module>
  StepModel(DistributedDataParallel<Module>& model)
      : module_(&*model.module()), reducer_(&model.reducer()) {}
  StepModel(torch::nn::Module& module) : module_(&module) {}
  template <class Impl>
  StepModel(const torch::nn::ModuleHolder<Impl>& holder) : module_(holder.ptr().get()) {}
  template <class Impl>
  StepModel(const std::shared_ptr<Impl>& module) : module_(module.get()) {}

  torch::nn::Module& module() const { return *module_; }
  GradientReducer* reducer() const { return reducer_; }  // null if not wrapped

 private:
  torch::nn::Module* module_;
  GradientReducer* reducer_ = nullptr;
};

class StepModels {
 public:
  StepModels() = default;
  template <class Model>
    requires std::convertible_to<Model&, StepModel>
  StepModels(Model& model) : models_{StepModel(model)} {}
  StepModels(std::initializer_list<StepModel> models) : models_(models) {}

  auto begin() const { return models_.begin(); }
  auto end() const { return models_.end(); }

  // Those of the wrapped models.
  std::vector<GradientReducer*> reducers() const {
    std::vector<GradientReducer*> found = mapped(models_, &StepModel::reducer);
    std::erase(found, nullptr);
    return found;
  }

 private:
  std::vector<StepModel> models_;
};

}  // namespace muster
