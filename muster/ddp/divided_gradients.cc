#include "muster/ddp/divided_gradients.h"

#include <map>
#include <mutex>

namespace muster {

namespace {

// Known by their address, and by a weak pointer whether they still live there.
struct DividedGradients {
  std::mutex mutex;
  std::map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> parameters;

  static DividedGradients& instance() {
    static DividedGradients all;
    return all;
  }
};

}  // namespace

void mark_divided_gradients(const std::vector<at::Tensor>& parameters) {
  auto& all = DividedGradients::instance();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.parameters, [](const auto& entry) { return entry.second.expired(); });
  for (const at::Tensor& parameter : parameters) {
    all.parameters.insert_or_assign(parameter.unsafeGetTensorImpl(),
                                    c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()));
  }
}

bool has_divided_gradient(const at::Tensor& parameter) {
  auto& all = DividedGradients::instance();
  const std::lock_guard lock(all.mutex);
  const auto found = all.parameters.find(parameter.unsafeGetTensorImpl());
  return found != all.parameters.end() && !found->second.expired();
}

}  // namespace muster
