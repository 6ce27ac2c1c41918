// What a mode was before is noted for every submodule: one of them may be in another mode than the
// model, as a frozen batch norm is.
#include "muster/train/evaluation_mode.h"

#include <utility>
#include <vector>

#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

template <class Model>
void share_buffers(const Model& model, ProcessGroup& group) {
  for (const Tensor& buffer : model.buffers())
    if (group.size() > 1 && buffer.defined())
      group.broadcast(buffer, 0);
}

}  // namespace

// Parents come first: train() sets the mode of everything inside.
EvaluationMode::EvaluationMode(Module& model, ProcessGroup& group) {
  share_buffers(model, group);
  auto inside = mapped(model.modules(/*include_self=*/false),
                       [](const auto& module) { return std::pair(module, module->is_training()); });
  restore_ = [&model, was_training = model.is_training(), inside = std::move(inside)] {
    model.train(was_training);
    for (const auto& [module, was_training] : inside)
      module->train(was_training);
  };
  model.eval();
}

// A frozen script has no modes.
EvaluationMode::EvaluationMode(torch::jit::Module& model, ProcessGroup& group) {
  share_buffers(model, group);
  std::vector<std::pair<torch::jit::Module, bool>> modes;
  for (const torch::jit::Module& module : model.modules())
    if (module.hasattr("training"))
      modes.emplace_back(module, module.is_training());
  for (auto& [module, was_training] : modes)
    module.setattr("training", false);
  restore_ = [modes = std::move(modes)]() mutable {
    for (auto& [module, was_training] : modes)
      module.setattr("training", was_training);
  };
}

EvaluationMode::~EvaluationMode() {
  restore_();
}

// The first forward after a training step broadcasts the buffers: all ranks do it now, since one
// may have nothing to evaluate.
void EvaluationMode::settle(GradientReducer& reducer) {
  reducer.before_forward();
  reducer.after_forward({});
}

}  // namespace muster
