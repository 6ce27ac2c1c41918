// Data-parallel training: the model on every rank, gradients averaged during backward.
//
//   muster::DistributedDataParallel model(Net(), ctx.process_group());
//   auto loss = loss_of(model(batch), labels);
//   loss.backward();  // gradients are averaged over the ranks when this returns
//
// Source: torch.nn.parallel.DistributedDataParallel, whose numbers it gives bit for bit.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/ddp/gradient_reducer.h"
#include "muster/ddp/outputs.h"

namespace muster {

// Restores reduction at the end of a scope.
class [[nodiscard]] NoSync {
 public:
  NoSync(GradientReducer& reducer, bool active) : reducer_(reducer), before_(reducer.reduces()) {
    if (active) reducer_.set_reduce(false);
  }
  ~NoSync() { reducer_.set_reduce(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  GradientReducer& reducer_;
  bool before_;
};

// `Module` is a module holder (what TORCH_MODULE makes), a shared_ptr to a module with `forward`, or a
// torch::jit::Module, as torch::jit::load reads it. (A plain list of parameters: GradientReducer.)
template <class Module>
class DistributedDataParallel {
 public:
  // Collective. Throws: as GradientReducer's constructor says.
  DistributedDataParallel(Module module, ProcessGroup group, const DdpOptions& options = {})
      : module_(std::move(module)),
        reducer_(std::make_unique<GradientReducer>(as_source(module_), std::move(group), options)) {}

  // The module's forward. The backward that follows it is collective. So is the next forward, of whatever
  // kind, where the module has buffers (options.h), and one after parameters were frozen, unfrozen or
  // registered: evaluate on module() where not all ranks do. Throws: as GradientReducer::before_forward and
  // after_forward.
  template <class... Args>
  auto forward(Args&&... args) {
    reducer_->before_forward();
    auto output = call(std::forward<Args>(args)...);
    reducer_->after_forward(outputs_of(output));
    return output;
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // While the guard lives, forwards are not followed by a reduction: gradients accumulate locally.
  NoSync no_sync() { return NoSync(*reducer_, true); }
  // The same when `active`; for loops that reduce at the last micro-batch only.
  NoSync no_sync_if(bool active) { return NoSync(*reducer_, active); }

  // What reduces its gradients, for a training step that drives several models.
  GradientReducer& reducer() { return *reducer_; }

  // Runs `body`, a loop with this model's forwards and backwards, on ranks with different numbers of inputs:
  // a rank that has returned from it takes part in what the others still do, with zeros, and in the end all
  // have the model of the last. Forwards inside of it are collective, of whatever kind; one model at a time.
  // Collective. Blocking: until `body` has returned on every rank. Throws: what `body` does;
  // failed_precondition for a static graph, sparse gradients, and parameters frozen or registered inside.
  // Source: torch.nn.parallel.DistributedDataParallel.join.
  JoinResult join(const std::function<void()>& body, const JoinOptions& options = {}) {
    return reducer_->join(body, options);
  }

  // The model itself: for saving, for evaluating on one rank, for the optimizer's parameters.
  Module& module() { return module_; }
  auto* operator->() {
    if constexpr (is_script) {
      return &module_;
    } else {
      return module_.operator->();
    }
  }
  // Each once, as an optimizer needs them: LibTorch's own list has a weight that two layers share twice, and
  // an optimizer would apply its gradient twice.
  std::vector<at::Tensor> parameters() {
    if constexpr (is_script) {
      return distinct_parameters(module_);
    } else {
      return distinct_parameters(*module_);
    }
  }

 private:
  static constexpr bool is_script = std::is_same_v<Module, torch::jit::Module>;

  template <class... Args>
  auto call(Args&&... args) {
    if constexpr (is_script) {
      return module_.forward({c10::IValue(std::forward<Args>(args))...});
    } else {
      return module_->forward(std::forward<Args>(args)...);
    }
  }
  static torch::jit::Module as_source(const torch::jit::Module& script) { return script; }
  template <class Impl>
  static std::shared_ptr<torch::nn::Module> as_source(const torch::nn::ModuleHolder<Impl>& holder) {
    return holder.ptr();
  }
  template <class Impl>
  static std::shared_ptr<torch::nn::Module> as_source(const std::shared_ptr<Impl>& pointer) {
    return pointer;
  }

  Module module_;
  std::unique_ptr<GradientReducer> reducer_;
};

}  // namespace muster
