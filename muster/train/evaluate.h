// Evaluates a model on a whole dataset, divided over the ranks, counting each sample once.
//
//   const double top1 = muster::evaluate(ctx, net, held_out, [](auto& net, const auto& batch) {
//     return net(batch.features).argmax(1).eq(batch.labels);
//   });
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <tuple>

#include "muster/comm/process_group.h"
#include "muster/train/evaluation_batches.h"
#include "muster/train/evaluation_mode.h"
#include "muster/train/metric.h"

namespace muster {

// Means over samples.
class SampleMeans {
 public:
  // Shapes: [B], one value per sample, or one mean over all of them. Throws: invalid_argument for
  // another shape.
  void add(const at::Tensor& values, int64_t samples);
  // The mean over all ranks; NaN without samples. Collective: yes.
  double over(ProcessGroup& group);

 private:
  Mean mean_;
};

// Returns the mean of `score(model, batch)` over the dataset, the same on every rank; a score has
// one value per sample, or is their mean.
//
// `loader` keeps its place in a training. It must visit this rank's part, repeat no sample and
// leave out none but those that skip_bad skips: ctx.loader(data, {…}, {.shuffle = false, .pad =
// false}), or ctx.loader(stream, {…}). Ranks may have different numbers of batches, also none.
// `model` is a DistributedDataParallel, a FullyShardedModule, a module holder, or a pointer to a
// module. `ctx` is a muster::Context or a ProcessGroup, over whose ranks the loader divides the
// samples. Collective: yes. Throws: invalid_argument, on every rank, if more or fewer samples were
// counted than the dataset has; failed_precondition if a rank has no example at all of a stream,
// and a FullyShardedModule.
template <class Context, class Model, class Loader, class Score>
double evaluate(Context& ctx, Model& model, Loader& loader, const Score& score) {
  ProcessGroup& group = evaluation::group_of(ctx);
  SampleMeans means;
  evaluation::for_each_sample_once(group, model, loader, [&](const auto& batch, bool counts) {
    const at::Tensor values = score(model, batch);
    if (counts)
      means.add(values, batch.size());
  });
  return means.over(group);
}

// Calls `fill(model, batch)`, which adds to the metrics, for every batch. The metrics are reset
// first, and afterwards have their values over all ranks. Loader, model, Throws: as above. A
// FullyShardedModule runs as often on each rank: `fill` is called again with a rank's last batch,
// and what it then adds to the metrics does not count.
template <class Context,
          class Model,
          class Loader,
          class Fill,
          std::derived_from<Metric>... Metrics>
  requires(sizeof...(Metrics) > 0)
void evaluate(Context& ctx, Model& model, Loader& loader, const Fill& fill, Metrics&... metrics) {
  ProcessGroup& group = evaluation::group_of(ctx);
  (metrics.reset(), ...);
  evaluation::for_each_sample_once(group, model, loader, [&](const auto& batch, bool counts) {
    if constexpr (evaluation::kRunsTogether<Model>) {
      const std::tuple<Metrics...> before(metrics...);
      fill(model, batch);
      if (!counts)
        std::tie(metrics...) = before;
    } else {
      fill(model, batch);
    }
  });
  (metrics.reduce(group), ...);
}

}  // namespace muster
