// Communication hooks: what is done with each bucket of gradients instead of a plain average, so that less is
// sent. Given as DdpOptions::hook; those that are built in are below.
//
//   muster::DistributedDataParallel model(net, group, {.hook = muster::bf16_compression()});
//   muster::DistributedDataParallel model(net, group, {.hook = [](muster::GradientBucket bucket) {
//     bucket.group.all_reduce(bucket.tensor, muster::ReduceOp::avg);
//     return bucket.tensor;
//   }});
//
// Source: torch.distributed.algorithms.ddp_comm_hooks, whose gradients they give bit for bit.
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

// What a hook gets. Buckets come in the order of their numbers, the same on all ranks, while backward runs.
struct GradientBucket {
  at::Tensor tensor;                  // this rank's gradients one after the other, flat; may be written to
  std::vector<at::Tensor> gradients;  // parts of `tensor`, of the parameters' shapes
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;  // of the parameters
  size_t index = 0;
  bool last = false;  // of this backward
  ProcessGroup group;
};

// What a hook returns: the average over all ranks, of the bucket's shape, or what it will come from. That is
// waited for at the end of the backward, bucket by bucket, in the thread of the backward: there it may make
// further calls of the group.
class Reduction {
 public:
  Reduction(at::Tensor average)  // NOLINT(google-explicit-constructor): a hook returns a tensor
      : finish_([average = std::move(average)] { return average; }) {}
  template <class Finish>
  requires std::is_invocable_r_v<at::Tensor, Finish&> Reduction(
      Finish finish)  // NOLINT(google-explicit-constructor)
      : finish_(std::move(finish)) {}
  Reduction(std::future<at::Tensor> future)  // NOLINT(google-explicit-constructor)
      : finish_([future = future.share()] { return future.get(); }) {}
  // Of a tensor, or of a list with one.
  Reduction(c10::intrusive_ptr<c10::ivalue::Future> future);  // NOLINT(google-explicit-constructor)

  // Blocking: until it is there.
  at::Tensor get() { return finish_(); }

 private:
  std::function<at::Tensor()> finish_;
};

// What a hook remembers between steps, for a checkpoint. `own` differs from rank to rank (errors that are
// still to be sent), `tensors` and `numbers` do not. Tensors are copies, named after the parameters.
struct HookState {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, at::Tensor> own;
  std::map<std::string, int64_t> numbers;
};

// A hook of a class of its own. Functions are enough where nothing is remembered.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;
  // With what makes it another one (`power_sgd(rank 2)`): the ranks compare it.
  virtual std::string name() const = 0;
  // Called in threads of autograd's, one bucket after the other.
  virtual Reduction reduce(GradientBucket bucket) = 0;
  // Such a hook belongs to one model.
  virtual bool remembers() const { return false; }
  virtual HookState state() const { return {}; }
  virtual void load_state(const HookState& /*state*/) {}
  // All buckets of a backward are averaged. A hook that remembers keeps what this step has left only where
  // the averages are finite, which is the same on all ranks: a step that is left out leaves the memory as it
  // was. Blocking: for the GPU, once a step, with the hooks here that remember.
  virtual void end_step() {}
  // The gradients of later steps are `factor` times as large: a loss scale has changed. TrainStep calls it.
  virtual void rescale(double /*factor*/) {}
  // After a backward that failed: what is remembered may now differ from rank to rank. Collective.
  virtual void recover(ProcessGroup& /*group*/) {}

  // What this rank has handed to collectives so far. Units: bytes.
  int64_t bytes_sent() const { return bytes_sent_; }

 protected:
  void count_sent(const at::Tensor& tensor) { bytes_sent_ += static_cast<int64_t>(tensor.nbytes()); }

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
  // A function of the user's.
  template <class Function>
  requires std::is_invocable_r_v<Reduction, Function&, GradientBucket> Hook(
      Function function)  // NOLINT(google-explicit-constructor)
      : hook_(of_function(std::move(function))) {}

  explicit operator bool() const { return hook_ != nullptr; }
  CommunicationHook* operator->() const { return hook_.get(); }
  std::string name() const { return hook_ ? hook_->name() : "none"; }

  // Between steps. Loading throws: invalid_argument for a state with what this hook does not know. A tensor
  // that is missing begins anew: of `own`, that is right for a job with another number of ranks.
  HookState state() const { return hook_ ? hook_->state() : HookState{}; }
  void load_state(const HookState& state) const;

  // By the model that it is given to. Throws: failed_precondition where a hook that remembers has one.
  void take() const;
  void release() const;

 private:
  static std::shared_ptr<CommunicationHook> of_function(std::function<Reduction(GradientBucket)> function);

  std::shared_ptr<CommunicationHook> hook_;
};

// A plain average, as without a hook. Source: allreduce_hook.
Hook plain_average();

// Half the bytes: gradients are divided by the number of ranks and sent as halves. Source:
// fp16_compress_hook, bf16_compress_hook.
Hook fp16_compression();
Hook bf16_compression();

struct PowerSgdOptions {
  int64_t matrix_rank = 1;          // PyTorch's matrix_approximation_rank
  int64_t start_step = 1000;        // plain averages until then; PyTorch's start_powerSGD_iter
  double min_compression_rate = 2;  // a gradient that shrinks by less is sent whole
  bool error_feedback = true;       // what was lost in a step is added in the next
  bool warm_start = true;           // from the last step's Q
  double orthogonalization_epsilon = 0;
  uint32_t seed = 0;
};

// A gradient of n × m goes as two matrices of n × rank and m × rank. Vectors go whole. Formula: sends
// rank·(n + m) of n·m numbers. Keeps a copy of the gradients for the error. Unlike PyTorch's it may start
// with the first step, and follows parameters that are frozen: it remembers by parameter and not by bucket.
// Throws: invalid_argument for numbers below 1, 0 and 0. Source: powerSGD_hook; arXiv:1905.13727.
Hook power_sgd(const PowerSgdOptions& options = {});

struct TopKOptions {
  double density = 0.01;       // the part of each gradient that is sent: at least one number
  bool error_feedback = true;  // what was not sent is added in the next step
};

// Each rank sends the largest numbers of each gradient and their places. Formula: 8·density·n bytes of 4·n,
// to each other rank: gains where density < 1 / (2 · ranks). Source: arXiv:1704.05021.
Hook top_k(const TopKOptions& options = {});

struct QuantizedOptions {
  int64_t block = 512;  // numbers that have a scale in common; 0: all of a bucket
};

// 8 bits for each number, and two floats a block, from each rank to every other. Source:
// quantization_perchannel_hook, and with block 0 quantization_pertensor_hook.
Hook quantized_8bit(const QuantizedOptions& options = {});

}  // namespace muster
