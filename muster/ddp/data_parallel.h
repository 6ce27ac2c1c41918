// One process, several devices: in each step the model is copied to all of them, the batch is
// divided, and the outputs are joined. Gradients arrive in the model itself. For small programs;
// DistributedDataParallel copies once, not in every step.
//
//   muster::DataParallel model(net, {{torch::kCUDA, 0}, {torch::kCUDA, 1}});
//   torch::cross_entropy_loss(model(x), y).backward();
//
// Formula: per step, one copy of the parameters to, and one of the gradients from, each device but
// the first. Source: torch.nn.DataParallel.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/ddp/outputs.h"

namespace muster {

struct DataParallelOptions {
  int64_t dim = 0;                                // along which tensors are divided and joined
  std::optional<c10::Device> output_device = {};  // default: the first
  // Copies the modules themselves in the first forward alone, and later their parameters, buffers
  // and modes: quicker, for models whose other members and options (Dropout's p) stay as they are.
  // A module that keeps tensors in members that are not registered, such as a mask that it computes
  // once, needs it: a copy of such a member stays on the first device.
  bool copies_once = false;
};

// The copies of a model on all devices but the first, which has the model itself.
class ModelReplicas {
 public:
  // Throws: invalid_argument without devices, and for a model that is not on the first.
  ModelReplicas(std::shared_ptr<torch::nn::Module> model,
                std::vector<c10::Device> devices,
                bool copies_once = false);

  // Copies the model as it is now to `count` replicas; their gradients flow back into the model.
  // The copying draws no random numbers. What a module's reset() draws is the model's in parameters
  // and buffers alone; elsewhere it is each replica's own.
  void refresh(size_t count);
  torch::nn::Module& at(size_t index) const { return *replicas_[index]; }
  const std::vector<c10::Device>& devices() const { return devices_; }

  // Calls `body` for 0 … count - 1, each in its own thread with its device current. Throws:
  // whatever the first failing call throws; if that is no muster::Error, an Error that names the
  // device.
  void for_each(size_t count, const std::function<void(size_t)>& body) const;

  // Warns, once, of a tie that the replicas do not have. `outputs` are those of each, after the
  // first forward of several that builds a graph.
  void warn_of_lost_tie(const std::vector<std::vector<at::Tensor>>& outputs);
  bool is_to_compare(size_t count) const;

 private:
  void make(size_t count);

  std::shared_ptr<torch::nn::Module> model_;
  std::vector<c10::Device> devices_;
  bool copies_once_;
  bool has_ties_ = false;  // a member of a layer was assigned, now or before
  bool was_compared_ = false;
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;  // the model first
  std::vector<std::shared_ptr<torch::nn::Module>> copied_;    // the model's modules then
};

namespace detail {

// Splits a batch into parts, at most one per device.
std::vector<at::Tensor> scatter(const at::Tensor& tensor,
                                const std::vector<c10::Device>& devices,
                                int64_t dim);
// An argument's parts. The type tells them from an argument that is a vector of tensors.
struct DividedTensor {
  std::vector<at::Tensor> parts;
};

at::Tensor gather(const std::vector<at::Tensor>& parts, c10::Device device, int64_t dim);

template <class Results>
std::vector<std::vector<at::Tensor>> tensors_of_each(Results& results) {
  std::vector<std::vector<at::Tensor>> tensors;
  for (auto& result : results) {
    auto& of_result = tensors.emplace_back();
    for (const ForwardOutput& output : outputs_of(*result))
      of_result.push_back(output.tensor);
  }
  return tensors;
}

template <class Value>
Value gather_outputs(std::vector<Value> parts, c10::Device device, int64_t dim) {
  const auto gather_member = [&](auto member) {
    std::vector<std::remove_cvref_t<decltype(member(parts[0]))>> values;
    for (Value& part : parts)
      values.push_back(member(part));
    return gather_outputs(std::move(values), device, dim);
  };
  if constexpr (std::is_same_v<Value, at::Tensor>) {
    return gather(parts, device, dim);
  } else if constexpr (requires { std::tuple_size<Value>::value; }) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return Value{gather_member([](Value& part) { return std::get<i>(part); })...};
    }(std::make_index_sequence<std::tuple_size_v<Value>>());
  } else {
    Value joined;
    for (const size_t i : indices_of(parts[0]))
      joined.push_back(gather_member([i](Value& part) { return part.at(i); }));
    return joined;
  }
}

}  // namespace detail

// `Module` is a module holder whose modules can be cloned. Its forward returns a tensor, or pairs,
// tuples and vectors of tensors.
template <class Module>
class DataParallel {
 public:
  // A device named several times gets several replicas (on the CPU: for tests).
  DataParallel(Module module,
               std::vector<c10::Device> devices,
               const DataParallelOptions& options = {})
      : module_(std::move(module)),
        replicas_(module_.ptr(), std::move(devices), options.copies_once),
        options_(options) {}

  // Divides tensors among the devices, and passes other arguments to each as they are, also vectors
  // and structs that have tensors inside. A batch with fewer samples than devices uses fewer of
  // them. Buffers (running statistics) are those of the first device's part. Throws: whatever the
  // module's forward throws.
  template <class... Args>
  auto forward(const Args&... args) {
    const size_t count = std::min({replicas_.devices().size(), parts_of(args)...});
    replicas_.refresh(count);
    const auto inputs = std::make_tuple(divided(args)...);
    using Result = std::remove_cvref_t<decltype(module_->forward(args...))>;
    std::vector<std::optional<Result>> results(count);
    replicas_.for_each(count, [&](size_t i) {
      auto& replica = dynamic_cast<typename Module::ContainedType&>(replicas_.at(i));
      results[i] = std::apply(
          [&](const auto&... parts) { return replica.forward(part(parts, i)...); }, inputs);
    });
    if (replicas_.is_to_compare(count))
      replicas_.warn_of_lost_tie(detail::tensors_of_each(results));
    std::vector<Result> outputs;
    for (auto& result : results)
      outputs.push_back(std::move(*result));
    return detail::gather_outputs(
        std::move(outputs), options_.output_device.value_or(replicas_.devices()[0]), options_.dim);
  }
  template <class... Args>
  auto operator()(const Args&... args) {
    return forward(args...);
  }

  Module& module() { return module_; }
  auto* operator->() { return module_.operator->(); }

 private:
  template <class Arg>
  size_t parts_of(const Arg& arg) const {
    if constexpr (std::derived_from<Arg, at::Tensor>)
      return divided(arg).parts.size();
    return replicas_.devices().size();
  }
  template <class Arg>
  auto divided(const Arg& arg) const {
    if constexpr (std::derived_from<Arg, at::Tensor>) {
      return detail::DividedTensor{detail::scatter(arg, replicas_.devices(), options_.dim)};
    } else {
      return arg;
    }
  }
  template <class Parts>
  static const auto& part(const Parts& parts, size_t index) {
    if constexpr (std::is_same_v<Parts, detail::DividedTensor>) {
      return parts.parts[index];
    } else {
      static_cast<void>(index);
      return parts;
    }
  }

  Module module_;
  ModelReplicas replicas_;
  DataParallelOptions options_;
};

}  // namespace muster
