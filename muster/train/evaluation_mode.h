// Keeps a model in evaluation mode while it lives. evaluate() and predict() make one; a loop of
// your own over held-out data makes it itself.
//
//   const muster::EvaluationMode mode(*net, ctx.process_group());
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <concepts>
#include <functional>

#include "muster/base/no_copy.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/trace/span.h"

namespace muster {

namespace evaluation {

template <class>
inline constexpr bool kIsDistributedDataParallel = false;
template <class Module>
inline constexpr bool kIsDistributedDataParallel<DistributedDataParallel<Module>> = true;

template <class Model>
concept IsModule =
    std::derived_from<Model, torch::nn::Module> || std::same_as<Model, torch::jit::Module>;

// A model around another, such as DistributedDataParallel and FullyShardedModule.
template <class Model>
concept IsWrapper = !IsModule<Model> && requires(Model& model) { model.module(); };

// Whether ranks can call the model only together, as those whose parameters are divided. Without
// gradients DistributedDataParallel calls no other rank.
template <class Model>
inline constexpr bool kRunsTogether = IsWrapper<Model> && !kIsDistributedDataParallel<Model>;

// The module itself, of a wrapper, a module holder, a pointer or a module.
template <class Model>
auto& module_of(Model& model) {
  if constexpr (IsModule<Model>) {
    return model;
  } else if constexpr (IsWrapper<Model>) {
    return module_of(model.module());
  } else {
    return *model;
  }
}

// What EvaluationMode takes: a DistributedDataParallel itself, and otherwise the module.
template <class Model>
auto& with_modes(Model& model) {
  if constexpr (kIsDistributedDataParallel<Model>) {
    return model;
  } else {
    return module_of(model);
  }
}

}  // namespace evaluation

// Keeps the model in evaluation mode, without gradients, until the end of the scope. All ranks
// start with rank 0's buffers, because those of a batch norm differ between ranks during training.
// Afterwards every submodule has the mode that it had.
class EvaluationMode : NoCopy {
 public:
  // Collective: yes.
  EvaluationMode(torch::nn::Module& model, ProcessGroup& group);
  EvaluationMode(torch::jit::Module& model, ProcessGroup& group);
  // Inside the scope the wrapper's forwards are no collectives: ranks may call it as often as they
  // like.
  template <class Module>
  EvaluationMode(DistributedDataParallel<Module>& model, ProcessGroup& group)
      : EvaluationMode(evaluation::module_of(model), group) {
    settle(model.reducer());
  }
  ~EvaluationMode();

 private:
  static void settle(GradientReducer& reducer);

  const Span span_{"evaluate", Category::compute};
  const at::NoGradGuard no_grad_;
  std::function<void()> restore_;
};

}  // namespace muster
