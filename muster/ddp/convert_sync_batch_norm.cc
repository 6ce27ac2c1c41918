// BatchNorm modules use the statistics of all ranks without being replaced: the operator that they
// call gets a kernel of ours in LibTorch's dispatcher, which looks whether the tensors that it gets
// belong to a converted module.
#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/sync_batch_norm.h"

namespace muster {

namespace {

using MaybeTensor = std::optional<Tensor>;

// A module that was converted. A tensor that it gives to the operator identifies it.
struct ConvertedNorm {
  c10::weak_intrusive_ptr<TensorImpl> tensor;  // another may get its address
  std::weak_ptr<Module> module;
  ProcessGroup group;
};

class ConvertedNorms {
 public:
  static ConvertedNorms& instance() {
    // It is never destroyed: groups outlive the statics of others.
    static auto& norms = *new ConvertedNorms;
    return norms;
  }

  void add(const Tensor& tensor, std::weak_ptr<Module> module, const ProcessGroup& group) {
    const std::unique_lock lock(mutex_);
    std::erase_if(norms_, [](const auto& item) { return item.second.module.expired(); });
    norms_.insert_or_assign(
        tensor.unsafeGetTensorImpl(),
        ConvertedNorm{c10::weak_intrusive_ptr<TensorImpl>(tensor.getIntrusivePtr()),
                      std::move(module),
                      group});
  }

  // Returns the group of the module that has the tensor, where it is in training mode.
  std::optional<ProcessGroup> find(const MaybeTensor& tensor) const {
    if (!tensor || !tensor->defined())
      return std::nullopt;
    const std::shared_lock lock(mutex_);
    const auto found = norms_.find(tensor->unsafeGetTensorImpl());
    if (found == norms_.end() || found->second.tensor.expired())
      return std::nullopt;
    const auto module = found->second.module.lock();
    if (!module || !module->is_training() || found->second.group.size() == 1)
      return std::nullopt;
    return found->second.group;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<const TensorImpl*, ConvertedNorm> norms_;
};

// The operator's kernel. A module's running statistics identify it, or else its weight.
Tensor batch_norm_of_all_ranks(const Tensor& input,
                               const MaybeTensor& weight,
                               const MaybeTensor& bias,
                               const MaybeTensor& running_mean,
                               const MaybeTensor& running_var,
                               bool training,
                               double momentum,
                               double eps,
                               bool cudnn_enabled) {
  const auto& norms = ConvertedNorms::instance();
  auto group = training ? norms.find(running_mean) : std::nullopt;
  if (training && !group)
    group = norms.find(weight);
  if (!group)
    return at::native::batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  const auto or_none = [](const MaybeTensor& tensor) {
    return tensor.value_or(Tensor());
  };
  return sync_batch_norm(input,
                         {.weight = or_none(weight),
                          .bias = or_none(bias),
                          .running_mean = or_none(running_mean),
                          .running_var = or_none(running_var)},
                         momentum,
                         eps,
                         *group);
}

// Registers the kernel once, and only in programs that convert something. LibTorch's own operator
// has no kernel under these keys, as it is put together from others. The devices' own keys are for
// InferenceMode, which goes past autograd.
void listen_to_batch_norm() {
  static std::once_flag registered;
  std::call_once(registered, [] {
    for (const auto key : {c10::DispatchKey::AutogradCPU,
                           c10::DispatchKey::AutogradCUDA,
                           c10::DispatchKey::CPU,
                           c10::DispatchKey::CUDA}) {
      auto& library = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      library.impl("batch_norm", TORCH_FN(batch_norm_of_all_ranks));
    }
  });
}

// Returns false where the module is no such BatchNorm.
template <class Impl>
bool convert_one(const std::string& name, Module& module, const ProcessGroup& group) {
  auto* norm = dynamic_cast<Impl*>(&module);
  if (norm == nullptr)
    return false;
  const Tensor& known_by = norm->running_mean.defined() ? norm->running_mean : norm->weight;
  if (!known_by.defined()) {
    throw invalid_argument(
        "convert_sync_batch_norm: expected a weight or running statistics, got '",
        name,
        "' with neither, so its calls cannot be recognised; make it a muster::SyncBatchNorm");
  }
  ConvertedNorms::instance().add(known_by, module.shared_from_this(), group);
  return true;
}

}  // namespace

bool is_of_converted_norm(const Tensor& tensor) {
  return ConvertedNorms::instance().find(tensor).has_value();
}

int64_t convert_sync_batch_norm(Module& model, const ProcessGroup& group) {
  listen_to_batch_norm();
  int64_t converted = 0;
  model.apply([&](const std::string& name, Module& module) {
    if (convert_one<torch::nn::BatchNorm1dImpl>(name, module, group) ||
        convert_one<torch::nn::BatchNorm2dImpl>(name, module, group) ||
        convert_one<torch::nn::BatchNorm3dImpl>(name, module, group))
      ++converted;
  });
  return converted;
}

}  // namespace muster
