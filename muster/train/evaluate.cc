#include "muster/train/evaluate.h"

#include <ATen/ops/zeros.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

EvaluationMode::EvaluationMode(torch::nn::Module& model, ProcessGroup& group) : model_(model) {
  for (const at::Tensor& buffer : model.buffers())
    if (group.size() > 1 && buffer.defined()) group.broadcast(buffer, 0);
  for (const auto& module : model.modules(/*include_self=*/false))
    modes_.emplace_back(module, module->is_training());
  was_training_ = model.is_training();
  model.eval();
}

// Parents first: train() is for all that is within.
EvaluationMode::~EvaluationMode() {
  model_.train(was_training_);
  for (const auto& [module, was_training] : modes_) module->train(was_training);
}

void SampleMeans::add(const at::Tensor& values, int64_t samples) {
  const at::Tensor value = values.detach().to(at::kDouble);
  if (value.dim() > 0 && value.numel() != samples) {
    throw Error(ErrorCode::invalid_argument,
                cat("evaluate: expected a score with one value for each of ", samples,
                    " samples, or their mean, got shape [", join(value.sizes(), ", "),
                    "]; take the mean over the other dimensions"));
  }
  const at::Tensor sum = value.dim() == 0 ? value * samples : value.sum();
  sum_ = sum_.defined() ? sum_ + sum : sum;
  samples_ += samples;
}

double SampleMeans::over(ProcessGroup& group, int64_t dataset_size) {
  at::Tensor both = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(group.device()));
  if (sum_.defined()) both[0] = sum_;
  both[1] = samples_;
  group.all_reduce(both);
  const auto counted = both[1].item<double>();
  if (counted > static_cast<double>(dataset_size)) {
    throw Error(ErrorCode::invalid_argument,
                cat("evaluate: expected each of ", dataset_size, " samples once, got ", counted,
                    " on all ranks together; give a loader that repeats none: sampling with pad = false"));
  }
  return both[0].item<double>() / counted;
}

}  // namespace muster
