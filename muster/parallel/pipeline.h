// Pipeline parallelism: a model cut into stages, one or several a rank; a step's batch goes through them in
// micro-batches, by a schedule (pipeline_schedule.h).
//
//   muster::Pipeline pipeline({my_stage}, mesh.group("pp"),
//                             {.schedule = muster::one_f_one_b(4, 8), .loss = torch::mse_loss…});
//   optimizer.zero_grad();
//   auto loss = pipeline.step(x, y);   // x is looked at on the first stage's rank, y on the last's
//   optimizer.step();                  // of pipeline.parameters()
//
// Gradients are those of the mean over the whole batch, as one process would have them.
// docs/parallel/pipeline.md
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/parallel/pipeline_schedule.h"
#include "muster/parallel/tensor_parallel.h"

namespace muster {

// A module whose forward takes one tensor and returns one: a module holder (Sequential too), a shared_ptr to
// a module, or an AnyModule.
struct PipelineStage {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;

  template <class Impl>
  PipelineStage(torch::nn::ModuleHolder<Impl> holder)  // NOLINT(google-explicit-constructor)
      : PipelineStage(holder.ptr()) {}
  template <class Impl>
  PipelineStage(std::shared_ptr<Impl> pointer)  // NOLINT(google-explicit-constructor)
      : module(pointer),
        forward([pointer](const at::Tensor& x) -> at::Tensor { return pointer->forward(x); }) {}
  PipelineStage(torch::nn::AnyModule any)  // NOLINT(google-explicit-constructor)
      : module(any.ptr()),
        forward([any](const at::Tensor& x) mutable { return any.forward<at::Tensor>(x); }) {}
};

// The mean over a micro-batch, a scalar, of the last stage's output and the target.
using PipelineLoss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

struct PipelineOptions {
  PipelineSchedule schedule = {};
  PipelineLoss loss = {};   // called on the last stage's rank alone
  bool recompute = false;   // hold stages' inputs only, and compute the rest again in backward
  bool share_loss = false;  // step() returns the loss on every rank
};

// Of one step. `reduce` is the same on all ranks.
struct PipelineStepOptions {
  // What gradients are multiplied by, the last stage's: a loss scale (train/precision.h), or 1 / n where n
  // steps add up. The loss is returned without it.
  double scale = 1;
  // False in all but the last of some steps whose gradients add up: those are averaged over replicas, and
  // summed over tied weights, in the last one.
  bool reduce = true;
};

// Of the last step, on this rank.
struct PipelineStats {
  int held_peak = 0;          // micro-batches, of all its stages, between F and B (or W)
  int64_t messages = 0;       // sent
  int64_t bytes = 0;          // sent
  double waited_seconds = 0;  // for messages; over NCCL the host does not wait
};

class Pipeline {
 public:
  // `stages`: this rank's, first to last: of the model's stages those with numbers rank, rank + ranks, ….
  // Collective: over `group`. Throws, on every rank alike: invalid_argument for a schedule that check()
  // refuses, of another number of ranks, or that differs between ranks; for a rank with too few or too many
  // stages; for no loss on the last rank.
  Pipeline(std::vector<PipelineStage> stages, ProcessGroup group, PipelineOptions options);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // One step: gradients are added to the parameters' grad(). Returns the mean loss on the last stage's rank
  // (with share_loss on all), elsewhere an undefined tensor. Shapes: input [n, …] and target [n, …], of
  // which micro_batches divide n; the same in every step. Collective: yes. Blocking: until this rank's part
  // is done. Throws: invalid_argument, on every rank alike, for an input or target with other shapes;
  // peer_failed naming the rank that failed first. After a failure the pipeline is of no use.
  at::Tensor step(const at::Tensor& input, const at::Tensor& target, const PipelineStepOptions& options = {});

  // The loss alone, without gradients. As step().
  at::Tensor evaluate(const at::Tensor& input, const at::Tensor& target);

  // A weight that ranks have in common (a token embedding that the last stage uses too): the copies become
  // equal now, the first rank's, and their gradients are summed in every step. Two stages of one rank share
  // the tensor itself. Before the first step. Collective: over all ranks; those without it give nothing.
  // Throws, on every rank alike: invalid_argument for copies whose shapes or types differ, and for none.
  void tie(const at::Tensor& parameter = {});

  // Replicas of this pipeline, along a data-parallel axis: their weights become equal now, the first's, and
  // gradients are averaged over `replicas` in every step; a stage's while other stages still compute. Once,
  // before the first step. Collective: over `replicas`. Throws: failed_precondition the second time.
  void average_over(ProcessGroup replicas);

  // Of this rank's stages, each once.
  std::vector<at::Tensor> parameters() const;

  // By the norm of all stages' gradients as of one vector: tied weights count once. `divided_over`: the ranks
  // that share these stages' layers out (tensor_parallel.h), mesh.group("tp"); their parts all count. After
  // step(), whose gradients are averaged and summed. Returns the norm before, the same on every rank.
  // Collective: over the pipeline's ranks and `divided_over`. Throws: invalid_argument for a max_norm below
  // 0.
  at::Tensor clip_grad_norm(double max_norm, const std::optional<ProcessGroup>& divided_over = {});

  // The parameters of all stages, on every rank, under the names that the stages give them; of divided layers
  // the undivided ones: for checkpoints and evaluation. Collective: yes, also over the ranks that share
  // layers out. Throws, on every rank alike: invalid_argument for one name on two ranks that is no tied
  // weight.
  WholeParameters gather_parameters() const;

  // This rank's stages' parameters as parts of the undivided model's, and their buffers: for
  // Checkpoints::add. A tied weight has the name that its first stage gives it, on all its ranks. Throws:
  // invalid_argument for one name of two parameters of this rank that are not tied; the save does for those
  // of two ranks.
  TensorPieces pieces() const;

  const PipelineStats& last_step() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster
