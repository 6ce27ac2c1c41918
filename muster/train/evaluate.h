// A model's score over a whole data set, each sample counted once, shared out over the ranks.
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

// The model in evaluation mode and without gradients until the scope ends. Every rank begins with rank 0's
// buffers: those of a batch norm differ between ranks while one trains.
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
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;  // of the modules within
};

// Means over samples.
class SampleMeans {
 public:
  // Shapes: [B], one value a sample, or one mean over all of them. Throws: invalid_argument for another
  // shape.
  void add(const at::Tensor& values, int64_t samples);
  // Over all ranks; NaN without a sample. Collective: yes. Throws: invalid_argument, on every rank, when more
  // samples were counted than the data set has.
  double over(ProcessGroup& group, int64_t dataset_size);

 private:
  at::Tensor sum_;  // on the device
  int64_t samples_ = 0;
};

// The mean of `score(model, batch)` over the data set: of each batch one value a sample, or their mean.
// `loader` goes through this rank's part without repeating samples: ctx.loader(data, {…}, {.shuffle = false,
// .pad = false}). `model` is a module holder or a pointer to a module, not the wrapped one: ranks may have
// different numbers of batches. Collective: yes; every rank gets the same number.
template <class Context, class Model, class Loader, class Score>
double evaluate(Context& ctx, Model& model, Loader& loader, const Score& score) {
  const EvaluationMode mode(*model, ctx.process_group());
  SampleMeans means;
  for (const auto& batch : loader) means.add(score(model, batch), batch.size());
  return means.over(ctx.process_group(), loader.dataset().size());
}

}  // namespace muster
