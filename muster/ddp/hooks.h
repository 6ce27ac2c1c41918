// Communication hooks: they replace the plain average of each gradient bucket, to send less. Pass
// one as DdpOptions::hook; the built-in ones are below.
//
//   muster::DistributedDataParallel model(net, group, {.hook = muster::bf16_compression()});
//   muster::DistributedDataParallel model(net, group, {.hook = [](muster::GradientBucket bucket) {
//     bucket.group.all_reduce(bucket.tensor, muster::ReduceOp::avg);
//     return bucket.tensor;
//   }});
//
// Source: torch.distributed.algorithms.ddp_comm_hooks, whose gradients they match bit for bit.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

// The input of a hook. Buckets come in index order, the same on all ranks, while backward runs.
struct GradientBucket {
  at::Tensor tensor;  // this rank's gradients, flattened and concatenated; the hook may write to it
  // Views into `tensor`, in the parameters' shapes. Complex gradients are real numbers in both;
  // their views have another dimension, of 2, as torch::view_as_real has.
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;  // of the parameters
  size_t index = 0;
  bool last = false;  // of this backward
  ProcessGroup group;
};

// A hook returns this: the average over all ranks, in the bucket's shape, or something that will
// yield it. The backward's thread waits for it at the end of the backward, bucket by bucket; it may
// make more calls on the group there.
class Reduction {
 public:
  Reduction(at::Tensor average)  // NOLINT(google-explicit-constructor): a hook returns a tensor
      : finish_([average = std::move(average)] { return average; }) {}
  template <class Finish>
    requires std::is_invocable_r_v<at::Tensor, Finish&>
  Reduction(Finish finish)  // NOLINT(google-explicit-constructor)
      : finish_(std::move(finish)) {}
  Reduction(std::future<at::Tensor> future)  // NOLINT(google-explicit-constructor)
      : finish_([future = future.share()] { return future.get(); }) {}
  // The future has a tensor, or a list with one tensor.
  Reduction(c10::intrusive_ptr<c10::ivalue::Future> future);  // NOLINT(google-explicit-constructor)

  // Blocking: until the average is there.
  at::Tensor get() { return finish_(); }

 private:
  std::function<at::Tensor()> finish_;
};

// The state of a hook between steps, for checkpoints. `own` differs between ranks (errors still to
// be sent); `tensors` and `numbers` do not. The tensors are copies, named after the parameters.
struct HookState {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, at::Tensor> own;
  std::map<std::string, int64_t> numbers;
};

// The base of hooks that remember something. For others a function is enough.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;
  // Includes the settings that matter (`power_sgd(rank 2)`): the ranks compare names.
  virtual std::string name() const = 0;
  // Called in autograd's threads, for one bucket at a time.
  virtual Reduction reduce(GradientBucket bucket) = 0;
  // Whether it keeps state. Such a hook can serve only one model.
  virtual bool remembers() const { return false; }
  virtual HookState state() const { return {}; }
  virtual void load_state(const HookState& /*state*/) {}
  // Called when all buckets of a backward are averaged. A hook that remembers keeps the step's
  // state only if the averages are finite, which all ranks agree on: a skipped step leaves the
  // state as it was. Blocking: the built-in hooks that remember wait for the GPU once per step.
  virtual void end_step() {}
  // The gradients of later steps are `factor` times as large, because a loss scale changed.
  // TrainStep calls it.
  virtual void rescale(double /*factor*/) {}
  // Called after a failed backward, when the state may differ between ranks. Collective: yes.
  virtual void recover(ProcessGroup& /*group*/) {}

  // The amount that this rank has passed to collectives so far. Units: bytes.
  int64_t bytes_sent() const { return bytes_sent_; }

 protected:
  void count_sent(const at::Tensor& tensor) {
    bytes_sent_ += tensor.numel() * tensor.element_size();
  }

 private:
  friend class Hook;
  int64_t bytes_sent_ = 0;
  bool taken_ = false;
};

// A hook, or none. Copies share it.
class Hook {
 public:
  Hook() = default;
  Hook(std::shared_ptr<CommunicationHook> hook)  // NOLINT(google-explicit-constructor)
      : hook_(std::move(hook)) {}
  // Wraps a user's function.
  template <class Function>
    requires std::is_invocable_r_v<Reduction, Function&, GradientBucket>
  Hook(Function function)  // NOLINT(google-explicit-constructor)
      : hook_(of_function(std::move(function))) {}

  explicit operator bool() const { return hook_ != nullptr; }
  CommunicationHook* operator->() const { return hook_.get(); }
  std::string name() const { return hook_ ? hook_->name() : "none"; }

  // To save and load the hook's state between steps. Missing tensors start anew; for `own` that is
  // right when the number of ranks has changed. Loading throws: invalid_argument for a state that
  // this hook does not know.
  HookState state() const { return hook_ ? hook_->state() : HookState{}; }
  void load_state(const HookState& state) const;

  // Called by the model that gets the hook. Throws: failed_precondition if a hook that remembers
  // already has a model.
  void take() const;
  void release() const;

 private:
  static std::shared_ptr<CommunicationHook> of_function(
      std::function<Reduction(GradientBucket)> function);

  std::shared_ptr<CommunicationHook> hook_;
};

// A plain average, as without a hook. Source: allreduce_hook.
Hook plain_average();

// Halves the bytes: divides gradients by the number of ranks and sends them in 16 bits. Source:
// fp16_compress_hook, bf16_compress_hook.
Hook fp16_compression();
Hook bf16_compression();

struct PowerSgdOptions {
  int64_t matrix_rank = 1;          // PyTorch's matrix_approximation_rank
  int64_t start_step = 1000;        // plain averages until then; PyTorch's start_powerSGD_iter
  double min_compression_rate = 2;  // a gradient that shrinks by less is sent whole
  bool error_feedback = true;       // what a step lost is added in the next
  bool warm_start = true;           // start from the last step's Q
  double orthogonalization_epsilon = 0;
  uint32_t seed = 0;
};

// Sends a gradient of n × m as two matrices of n × rank and m × rank; vectors are sent whole.
// Formula: sends rank·(n + m) of n·m numbers. Keeps a copy of the gradients for the error. Unlike
// PyTorch's it may start at the first step, and it allows freezing, because it keeps state per
// parameter, not per bucket. Throws: invalid_argument for a matrix_rank below 1, or a negative
// start_step or min_compression_rate. Source: powerSGD_hook; arXiv:1905.13727.
Hook power_sgd(const PowerSgdOptions& options = {});

struct TopKOptions {
  double density = 0.01;       // fraction of each gradient that is sent; at least one number
  bool error_feedback = true;  // what was not sent is added in the next step
};

// Each rank sends the largest numbers of each gradient and their indices. Formula: 8·density·n
// bytes instead of 4·n, to each other rank: a gain if density < 1 / (2 · ranks). Source:
// arXiv:1704.05021.
Hook top_k(const TopKOptions& options = {});

struct QuantizedOptions {
  int64_t block = 512;  // numbers that share a scale; 0: the whole bucket
};

// Sends 8 bits per number and two floats per block, from each rank to every other. Source:
// quantization_perchannel_hook; with block 0, quantization_pertensor_hook.
Hook quantized_8bit(const QuantizedOptions& options = {});

}  // namespace muster
