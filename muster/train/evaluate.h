// Evaluates a model on a whole dataset, divided over the ranks, counting each sample once.
//
//   const double top1 = muster::evaluate(ctx, net, held_out, [](auto& net, const auto& batch) {
//     return net(batch.features).argmax(1).eq(batch.labels);
//   });
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/data/loader.h"
#include "muster/trace/span.h"

namespace muster {

// Keeps the model in evaluation mode, without gradients, until the end of the scope. All ranks
// start with rank 0's buffers, because those of a batch norm differ between ranks during training.
class EvaluationMode {
 public:
  // Collective: yes.
  EvaluationMode(torch::nn::Module& model, ProcessGroup& group);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  const Span span_{"evaluate", Category::compute};
  const at::NoGradGuard no_grad_;
  torch::nn::Module& model_;
  bool was_training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;  // of the submodules
};

// Means over samples.
class SampleMeans {
 public:
  // Shapes: [B], one value per sample, or one mean over all of them. Throws: invalid_argument for
  // another shape.
  void add(const at::Tensor& values, int64_t samples);
  // The mean over all ranks; NaN without samples. `bad_samples` are those that the loader has
  // skipped here. Collective: yes. Throws: invalid_argument, on every rank, if more or fewer
  // samples were counted than the dataset has.
  double over(ProcessGroup& group, int64_t dataset_size, int64_t bad_samples = 0);

 private:
  at::Tensor sum_;  // on the device
  int64_t samples_ = 0;
};

// Returns the mean of `score(model, batch)` over the dataset, the same on every rank; a score has
// one value per sample, or is their mean. `loader` must visit this rank's part, repeat no sample
// and leave out none but those that skip_bad skips: ctx.loader(data, {…}, {.shuffle = false, .pad =
// false}). `model` is a module holder or a pointer to a module, not a wrapped one, because ranks
// may have different numbers of batches. Collective: yes. Throws: as SampleMeans.
template <class Context, class Model, class Loader, class Score>
double evaluate(Context& ctx, Model& model, Loader& loader, const Score& score) {
  const EvaluationMode mode(*model, ctx.process_group());
  const int64_t bad_before = loader.stats().bad_samples;
  SampleMeans means;
  for (const auto& batch : loader)
    means.add(score(model, batch), batch.size());
  const int64_t bad = loader.stats().bad_samples - bad_before;
  return means.over(ctx.process_group(), loader.dataset().size(), bad);
}

}  // namespace muster
