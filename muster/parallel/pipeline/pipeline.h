// Pipeline parallelism: a model is cut into stages, one or more per rank. A step's batch passes
// through them in micro-batches, in the order of a schedule (schedule.h).
//
//   muster::Pipeline pipeline({my_stage}, mesh.group("pp"),
//                             {.schedule = muster::one_f_one_b(4, 8), .loss = torch::mse_loss…});
//   optimizer.zero_grad();
//   // x is read on the first stage's rank, y on the last stage's:
//   auto loss = pipeline.step(x, y);
//   optimizer.step();  // of pipeline.parameters()
//
// Gradients are those of the mean over the whole batch, as one process would compute them.
// docs/parallel/pipeline.md
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/pipeline/schedule.h"
#include "muster/parallel/tensor/tensor_parallel.h"

namespace muster {

// A module whose forward takes one tensor and returns one: a module holder (also Sequential), a
// shared_ptr to a module, or an AnyModule.
struct PipelineStage {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;

  template <class Impl>
  PipelineStage(const torch::nn::ModuleHolder<Impl>& holder)  // NOLINT(google-explicit-constructor)
      : PipelineStage(holder.ptr()) {}
  template <class Impl>
  PipelineStage(std::shared_ptr<Impl> pointer)  // NOLINT(google-explicit-constructor)
      : module(pointer),
        forward([pointer](const at::Tensor& x) -> at::Tensor { return pointer->forward(x); }) {}
  PipelineStage(torch::nn::AnyModule any)  // NOLINT(google-explicit-constructor)
      : module(any.ptr()),
        forward([any](const at::Tensor& x) mutable { return any.forward<at::Tensor>(x); }) {}
};
using PipelineStages = std::vector<PipelineStage>;

// Returns the mean loss over a micro-batch, a scalar, from the last stage's output and the target.
using PipelineLoss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

struct PipelineOptions {
  PipelineSchedule schedule = {};
  PipelineLoss loss = {};   // called only on the last stage's rank
  bool recompute = false;   // keep only the stages' inputs, and recompute the rest in backward
  bool share_loss = false;  // step() returns the loss on every rank
  // Give all replicas the first one's buffers in average_over() and at the end of each step that
  // reduces, as DistributedDataParallel does before the next forward.
  bool broadcast_buffers = true;
};

// Options of one step. `reduce` must be the same on all ranks.
struct PipelineStepOptions {
  // A factor for the gradients, applied at the last stage: a loss scale (train/precision.h), or 1 /
  // n to accumulate n steps. The returned loss is not scaled.
  double scale = 1;
  // To accumulate gradients over several steps, set it to false in all but the last. The last step
  // averages them over replicas and sums them over tied weights.
  bool reduce = true;
};

// Statistics of the last step on this rank.
struct PipelineStats {
  int held_peak = 0;          // most micro-batches, of all its stages, between F and B (or W)
  int64_t messages = 0;       // sent
  int64_t bytes = 0;          // sent
  double waited_seconds = 0;  // for messages; over NCCL the host does not wait
};

class Pipeline : NoCopy {
 public:
  // `stages` are this rank's, first to last: the model's stages with numbers rank, rank + ranks, ….
  // Collective: over `group`.
  // Throws: invalid_argument, on every rank alike, for a schedule that check() rejects, or over
  // NCCL check_over_nccl(), that is for another number of ranks, or that differs between ranks; for
  // a rank with too few or too many stages; for no loss on the last rank.
  Pipeline(std::vector<PipelineStage> stages, ProcessGroup group, PipelineOptions options);
  ~Pipeline();

  // Runs one step and adds gradients to the parameters' grad(). Returns the mean loss on the last
  // stage's rank (with share_loss on all ranks), elsewhere an undefined tensor. After a failure the
  // pipeline is unusable, and says so. Shapes: input [n, …] and target [n, …], n a multiple of
  // micro_batches; the same in every step. Collective: yes. Blocking: until this rank's part is
  // done. Throws: invalid_argument, on every rank alike, for an input or target with other shapes;
  // peer_failed naming the rank that failed first.
  at::Tensor step(const at::Tensor& input,
                  const at::Tensor& target,
                  const PipelineStepOptions& options = {});

  // Computes only the loss, without gradients and with the stages in evaluation mode. Otherwise as
  // step().
  at::Tensor evaluate(const at::Tensor& input, const at::Tensor& target);

  // Ties a weight that several ranks share (such as a token embedding that the last stage reuses).
  // The copies are set to the first rank's now, and in the next step where one was given other
  // memory (torch::load, vector_to_parameters); their gradients are summed in every step. Two
  // stages of one rank share the tensor itself. Call it before the first step. Collective: over all
  // ranks; ranks without the weight pass nothing. Throws: invalid_argument, on every rank alike,
  // for copies whose shapes or types differ, and if no rank passes one.
  void tie(const at::Tensor& parameter = {});

  // Makes `replicas` data-parallel replicas of this pipeline. Their weights are set to the first
  // one's now, and in the next step that reduces where one was given other memory, or parameters
  // were frozen, unfrozen or replaced; gradients are averaged in every step, a stage's while other
  // stages still compute. Buffers: see PipelineOptions. On CPUs the first replica warns of a
  // trained tensor that is in no stage, once it differs between replicas. Call it once, before the
  // first step. Collective: over `replicas`. Throws: failed_precondition the second time;
  // invalid_argument, on every replica, as step() later, for parameters or broadcast buffers that
  // differ in name, form, or whether they are trained, and for ranks that have other parts of the
  // same divided layers.
  void average_over(ProcessGroup replicas);

  // The parameters of this rank's stages, each once.
  Tensors parameters() const;

  // Clips by the norm of all stages' gradients as one vector; tied weights count once.
  // `divided_over` is the group over which these stages' layers are divided (tensor_parallel.h),
  // mesh.group("tp"); all its parts count. Call it after step(), which has averaged and summed the
  // gradients. Returns the norm before clipping, the same on every rank. Collective: over the
  // pipeline's ranks and `divided_over`. Throws: invalid_argument for a negative max_norm;
  // failed_precondition for divided layers without the group of their parts, or with another.
  at::Tensor clip_grad_norm(double max_norm, const std::optional<ProcessGroup>& divided_over = {});

  // The parameters of all stages, on every rank, by the names that the stages give them; divided
  // layers are gathered. For checkpoints and evaluation. Collective: yes, also over the ranks that
  // divide layers. Throws: invalid_argument, on every rank alike, if two ranks use one name and it
  // is not a tied weight.
  WholeParameters gather_parameters() const;

  // The parameters of this rank's stages as pieces of the undivided model's, and their buffers, for
  // Checkpoints::add. A tied weight has the name from its first stage on all its ranks.
  // Throws: invalid_argument if two untied parameters of this rank have one name; the save throws
  // it for two ranks.
  TensorPieces pieces() const;

  const PipelineStats& last_step() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster
