// An exponential moving average of a model's weights, for evaluation and for keeping.
//
//   muster::Ema ema(*net, 0.999);
//   … optimizer.step(); ema.update();
//   {
//     const auto averages = ema.swap();  // the model has the averages until the end of the scope
//     evaluate(net);
//   }
//
// Of a model that is divided over ranks, each rank averages its part:
//
//   muster::Ema ema(sharded.pieces(*net), 0.999);
//
// Costs one more copy of what this rank has of the model, and one pass over it per update. Ranks
// that have the same weights have the same averages. Averages of bf16 and fp16 weights are fp32: in
// those types a small change of an average would be rounded away. Source:
// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn, bit for bit with weights of fp32.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/checkpoint/tensor_pieces.h"

namespace muster {

enum class EmaBuffers {
  copy,    // the model's own at the last update (batch norm statistics are already slow)
  average  // averaged like parameters, except integer buffers, which are copied
};

struct EmaOptions {
  bool warmup =
      false;  // decay at most (1 + n) / (10 + n) in update n, so that early averages follow faster
  int64_t every = 1;  // only every n-th update() call counts
  EmaBuffers buffers = EmaBuffers::copy;
};

class Ema : NoCopy {
 public:
  // The model must outlive it. Parameters and buffers added later are not averaged. If the model
  // moves to another device, its averages move too. Throws: invalid_argument for a decay outside
  // [0, 1]; failed_precondition (like update() and swap()) for parameters without memory
  // (FullySharded); update(), swap() and state() the same for a module that was replaced since.
  Ema(torch::nn::Module& model, double decay, const EmaOptions& options = {});
  // Averages this rank's parts of a model: FullySharded::pieces, parallel_pieces or
  // Pipeline::pieces. With a ShardedOptimizer the model is whole: use the other constructor.
  // Throws: as the other constructor.
  Ema(const TensorPieces& weights, double decay, const EmaOptions& options = {});

  // Call it after every optimizer step: average = decay · average + (1 - decay) · weight. The first
  // call copies the weights. Does not block. Throws: failed_precondition during a swap, and for
  // weights whose type or shape differs from their averages'.
  void update();
  int64_t updates() const { return updates_; }  // those that counted

  // Until the guard ends, the model's memory holds the averages, and this object the weights;
  // before the first update() the averages are the weights. Only one at a time. Of a FullySharded
  // model, take it before whole_parameters(), which gathers the averages then.
  class [[nodiscard]] Swap : NoCopy {
   public:
    explicit Swap(Ema& ema) : ema_(ema) { ema_.begin_swap(); }
    ~Swap() { ema_.end_swap(); }

   private:
    Ema& ema_;
  };
  Swap swap() { return Swap(*this); }

  // The averages by PyTorch's names, parameters then buffers. They share this object's memory.
  const NamedTensorList& averages() const { return averages_; }
  // The averages as pieces of the whole model, with which Checkpoints divides the saving.
  TensorPieces pieces() const;

  // Throws: failed_precondition during a swap.
  SavedState state() const;
  // Throws: invalid_argument for a tensor that is missing or has another shape; then nothing is
  // changed.
  void load_state(const SavedState& state);
  // The averages' own memory, which Checkpoints reads a saved state into. Throws: as state().
  NamedTensors own_tensors() const;

 private:
  void add(const TensorPiece& weight);
  void begin_swap();
  void end_swap();
  void exchange();
  void exchange_one(size_t i, const at::Tensor& before);
  void follow_weights();
  void require_averaged_modules() const;
  void refuse_while_swapped(const char* call) const;
  void warn_if_left_out() const;

  double decay_;
  EmaOptions options_;
  Tensors weights_;                    // the model's, each once
  std::vector<std::string> names_;     // the first of each
  std::vector<at::ScalarType> types_;  // of the weights that are averaged
  Tensors kept_;              // their averages (during a swap, the weights of the same type)
  Tensors aside_;             // during a swap, the weights of another type
  NamedTensorList averages_;  // the same by name
  TensorPieces pieces_;       // their places in the whole model, without tensors
  std::vector<std::shared_ptr<const TensorsOfModel>> models_;  // that have the weights
  Tensors averaged_weights_, averages_of_those_;
  Tensors copied_weights_, copies_of_those_;
  int64_t calls_ = 0;
  int64_t updates_ = 0;
  bool swapped_ = false;
};

}  // namespace muster
