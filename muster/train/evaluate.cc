#include "muster/train/evaluate.h"

#include <ATen/ops/zeros.h>

namespace muster {

EvaluationMode::EvaluationMode(torch::nn::Module& model, ProcessGroup& group) {
  for (const auto& module : model.modules(/*include_self=*/false)) modes_.emplace_back(module, module->is_training());
  modes_.emplace(modes_.begin(), model.shared_from_this(), model.is_training());
  model.eval();
  if (group.size() == 1) return;
  for (const at::Tensor& buffer : model.buffers())
    if (buffer.defined()) group.broadcast(buffer, 0);
}

// Parents first: train() is for all that is within.
EvaluationMode::~EvaluationMode() {
  for (const auto& [module, was_training] : modes_) module->train(was_training);
}

void SampleMeans::add(const at::Tensor& values, int64_t samples) {
  const at::Tensor value = values.detach().to(at::kDouble);
  const at::Tensor sum = value.dim() == 0 ? value * samples : value.sum();
  sum_ = sum_.defined() ? sum_ + sum : sum;
  samples_ += samples;
}

double SampleMeans::over(ProcessGroup& group) {
  at::Tensor both = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(group.device()));
  if (sum_.defined()) both[0] = sum_;
  both[1] = samples_;
  group.all_reduce(both);
  return (both[0] / both[1]).item<double>();
}

}  // namespace muster
