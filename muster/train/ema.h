// An exponential moving average of a model's weights, to evaluate and to keep.
//
//   muster::Ema ema(*net, 0.999);
//   … optimizer.step(); ema.update();
//   {
//     const auto averages = ema.swap();  // the model has the averages until the end of the scope
//     evaluate(net);
//   }
//
// Costs one more copy of the model, and a pass over it an update. Every rank has the same averages, as it has
// the same weights. Source: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn, whose bits these
// are.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "muster/train/saved_state.h"

namespace muster {

enum class EmaBuffers {
  copy,    // the model's own, as of the last update (a batch norm's statistics move slowly already)
  average  // as parameters are; those of whole numbers are copied all the same
};

struct EmaOptions {
  bool warmup = false;  // the decay is at most (1 + n) / (10 + n) in the n-th update: young averages follow
  int64_t every = 1;    // calls of update() of which one counts
  EmaBuffers buffers = EmaBuffers::copy;
};

class Ema {
 public:
  // The model must outlive it. Parameters and buffers that come later are not averaged. A model that goes to
  // another device takes its averages along. Throws: invalid_argument for a decay that is not in [0, 1];
  // failed_precondition, as update() and swap(), for parameters without memory (FullySharded).
  Ema(torch::nn::Module& model, double decay, const EmaOptions& options = {});
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  // After every step of the optimizer: average = decay · average + (1 - decay) · weight. The first one takes
  // the weights as they are. Blocking: no. Throws: failed_precondition while a swap lives, and for weights
  // that have another type or shape than their averages.
  void update();
  int64_t updates() const { return updates_; }  // those that counted

  // The model's memory has the averages, and this object the weights, until the guard ends. One at a time.
  class [[nodiscard]] Swap {
   public:
    explicit Swap(Ema& ema) : ema_(ema) { ema_.begin_swap(); }
    ~Swap() { ema_.end_swap(); }
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;

   private:
    Ema& ema_;
  };
  Swap swap() { return Swap(*this); }

  // Averages by PyTorch's names, parameters then buffers. They share the memory of this object.
  const std::vector<std::pair<std::string, at::Tensor>>& averages() const { return averages_; }

  // Throws: failed_precondition while a swap lives.
  SavedState state() const;
  // Throws: invalid_argument for a tensor that is missing or has another shape; nothing is changed then.
  void load_state(const SavedState& state);

 private:
  void add(const std::string& name, const at::Tensor& tensor, bool averaged);
  void begin_swap();
  void end_swap();
  void exchange();
  void follow_weights();
  const std::string& name_of(const at::Tensor& average) const;
  void refuse_while_swapped(const char* call) const;

  double decay_;
  EmaOptions options_;
  std::vector<at::Tensor> weights_;  // the model's, each once
  std::vector<at::Tensor> kept_;     // their averages (or, during a swap, they themselves)
  std::vector<std::pair<std::string, at::Tensor>> averages_;  // the same by name
  std::vector<at::Tensor> averaged_weights_, averages_of_those_;
  std::vector<at::Tensor> copied_weights_, copies_of_those_;
  int64_t calls_ = 0;
  int64_t updates_ = 0;
  bool swapped_ = false;
};

}  // namespace muster
