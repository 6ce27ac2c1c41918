// Data-parallel training: the model on every rank, gradients averaged during backward.
//
//   muster::DistributedDataParallel model(Net(), ctx.process_group());
//   auto loss = loss_of(model(batch), labels);
//   loss.backward();  // gradients are averaged over the ranks when this returns
//
// Source: torch.nn.parallel.DistributedDataParallel, whose numbers it gives bit for bit.
#pragma once

#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/ddp/gradient_reducer.h"

namespace muster {

namespace detail {

// The tensors in what a forward returns: a tensor, or any nesting of pairs, tuples, containers and optionals
// of them, and of types with a member tensors() that returns std::tie of theirs. Other types have none that
// can be seen.
template <class T>
void collect_tensors(T& value, std::vector<at::Tensor*>& out) {
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    // Containers that hand out their elements as constants (std::set) hold none that are.
    if (value.defined()) out.push_back(const_cast<at::Tensor*>(&value));
  } else if constexpr (requires { value.tensors(); }) {
    std::apply([&](auto&... item) { (collect_tensors(item, out), ...); }, value.tensors());
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](auto&... item) { (collect_tensors(item, out), ...); }, value);
  } else if constexpr (requires { value.has_value(), *value; }) {
    if (value.has_value()) collect_tensors(*value, out);
  } else if constexpr (!std::is_convertible_v<const T&, std::string_view> &&
                       requires { value.begin() != value.end(); }) {
    for (auto&& item : value) collect_tensors(item, out);
  }
}

}  // namespace detail

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

// `Module` is a module holder (what TORCH_MODULE makes) or a shared_ptr to a module with `forward`.
template <class Module>
class DistributedDataParallel {
 public:
  // Collective. Throws: as GradientReducer's constructor says.
  DistributedDataParallel(Module module, ProcessGroup group, const DdpOptions& options = {})
      : module_(std::move(module)),
        reducer_(std::make_unique<GradientReducer>(as_shared(module_), std::move(group), options)) {}

  // The module's forward. The backward that follows it is collective, and with buffers so is the next forward
  // after it, of whatever kind (options.h): evaluate on module() where not all ranks do.
  template <class... Args>
  auto forward(Args&&... args) {
    reducer_->before_forward();
    auto output = module_->forward(std::forward<Args>(args)...);
    std::vector<at::Tensor*> tensors;
    detail::collect_tensors(output, tensors);
    reducer_->after_forward(tensors);
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

  // The model itself: for saving, for evaluating on one rank, for the optimizer's parameters.
  Module& module() { return module_; }
  auto* operator->() { return module_.operator->(); }
  // Each once, as an optimizer needs them: LibTorch's own list has a weight that two layers share twice, and
  // an optimizer would apply its gradient twice.
  std::vector<at::Tensor> parameters() { return distinct_parameters(*module_); }

 private:
  template <class Impl>
  static std::shared_ptr<torch::nn::Module> as_shared(const torch::nn::ModuleHolder<Impl>& holder) {
    return holder.ptr();
  }
  template <class Impl>
  static std::shared_ptr<torch::nn::Module> as_shared(const std::shared_ptr<Impl>& pointer) {
    return pointer;
  }

  Module module_;
  std::unique_ptr<GradientReducer> reducer_;
};

}  // namespace muster
