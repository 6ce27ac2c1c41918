// Data-parallel training: the model on every rank, gradients averaged during backward.
//
//   muster::DistributedDataParallel model(Net(), ctx.process_group());
//   auto loss = loss_of(model(batch), labels);
//   loss.backward();  // gradients are averaged over the ranks when this returns
//
// Source: torch.nn.parallel.DistributedDataParallel, whose numbers it gives bit for bit.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/never.h"
#include "muster/ddp/gradient_reducer.h"
#include "muster/ddp/outputs.h"

namespace torch::nn {
class Sequential;  // to ask whether a model is one
}

namespace muster {

// Restores the previous setting at the end of its scope.
class [[nodiscard]] NoSync {
 public:
  NoSync(GradientReducer& reducer, bool active) : reducer_(reducer), before_(reducer.reduces()) {
    if (active)
      reducer_.set_reduce(false);
  }
  ~NoSync() { reducer_.set_reduce(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  GradientReducer& reducer_;
  bool before_;
};

// What DistributedDataParallel wraps.
template <class Module>
concept IsWrappable = std::same_as<Module, torch::jit::Module> ||
                      std::convertible_to<Module, std::shared_ptr<torch::nn::Module>> ||
                      requires(const Module& holder) {
                        { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
                      };

// `Module` is a module holder (what TORCH_MODULE makes), a shared_ptr to a module with `forward`,
// or a torch::jit::Module as torch::jit::load returns it. For a plain list of parameters use
// GradientReducer.
template <class Module>
class DistributedDataParallel {
 public:
  // Collective: yes. Throws: as GradientReducer's constructor.
  DistributedDataParallel(Module module, ProcessGroup group, const DdpOptions& options = {})
      : module_(std::move(module)),
        reducer_(std::make_unique<GradientReducer>(as_source(module_), std::move(group), options)) {
  }

  // Runs the module's forward. The backward that follows is collective. The next forward of any
  // kind is collective too if the module has buffers (options.h), or if parameters have been
  // frozen, unfrozen, registered or loaded. To evaluate on some ranks only, use module(). Throws:
  // as GradientReducer::before_forward and after_forward.
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

  // While the guard lives, backwards are not reduced: gradients accumulate locally.
  NoSync no_sync() { return NoSync(*reducer_, true); }
  // Does so if `active`; for loops that reduce only at the last micro-batch.
  NoSync no_sync_if(bool active) { return NoSync(*reducer_, active); }

  // The part that reduces the gradients, for training steps that drive several models.
  GradientReducer& reducer() { return *reducer_; }

  // Runs `body`, a loop with this model's forwards and backwards, on ranks with different numbers
  // of inputs. A rank that has left `body` shadows the others: it joins in their collectives with
  // zeros. In the end all ranks have the model of the last active rank. All forwards inside are
  // collective; only one model may run. Collective: yes. Blocking: until `body` has returned on
  // every rank. Throws: whatever `body` throws; failed_precondition for a static graph, sparse
  // gradients, and parameters frozen or registered inside. Source:
  // torch.nn.parallel.DistributedDataParallel.join.
  JoinResult join(const std::function<void()>& body, const JoinOptions& options = {}) {
    return reducer_->join(body, options);
  }

  // The model itself: to save it, to evaluate on one rank, to build an optimizer. Its forward,
  // model->forward(), announces nothing: a backward of it throws failed_precondition.
  Module& module() { return module_; }
  auto* operator->() {
    if constexpr (is_script) {
      return &module_;
    } else {
      return module_.operator->();
    }
  }
  // Each parameter once, as an optimizer needs them. LibTorch's own list repeats a weight shared by
  // two layers, and an optimizer would apply its gradient twice.
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
      return module_->forward(as_tensor(std::forward<Args>(args))...);
    }
  }
  // A Sequential tells its arguments' types apart as it runs: to it, a Batch of tensors is none.
  template <class Arg>
  static decltype(auto) as_tensor(Arg&& argument) {
    constexpr bool is_batch = std::derived_from<std::remove_cvref_t<Arg>, at::Tensor>;
    if constexpr (is_batch && std::same_as<Module, torch::nn::Sequential>) {
      return static_cast<const at::Tensor&>(argument);
    } else {
      return std::forward<Arg>(argument);
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

// What cannot be wrapped: the text is the compiler's whole answer.
template <class Module>
  requires(!IsWrappable<Module>)
class DistributedDataParallel<Module> {
  static_assert(kNever<Module>,
                "DistributedDataParallel takes a module holder (what TORCH_MODULE makes), a "
                "std::shared_ptr to a module (std::make_shared<Net>()), or a torch::jit::Module");

 public:
  DistributedDataParallel(const auto& /*model*/,
                          const auto& /*group*/,
                          const DdpOptions& /*options*/ = {}) {}
};

template <class Module, class... Rest>
DistributedDataParallel(Module, Rest&&...) -> DistributedDataParallel<Module>;

}  // namespace muster
