#include "muster/ddp/divided_gradients.h"

#include <map>
#include <mutex>

namespace muster {

namespace {

// Known by their address, and by a weak pointer whether they still live there.
struct DividedGradients {
  struct Entry {
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    int ranks;
  };
  std::mutex mutex;
  std::map<const c10::TensorImpl*, Entry> parameters;

  static DividedGradients& instance() {
    static DividedGradients all;
    return all;
  }
};

}  // namespace

void mark_divided_gradients(const std::vector<at::Tensor>& parameters, int ranks) {
  auto& all = DividedGradients::instance();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.parameters, [](const auto& entry) { return entry.second.parameter.expired(); });
  for (const at::Tensor& parameter : parameters) {
    const c10::weak_intrusive_ptr<c10::TensorImpl> weak(parameter.getIntrusivePtr());
    all.parameters.insert_or_assign(parameter.unsafeGetTensorImpl(), DividedGradients::Entry{weak, ranks});
  }
}

int ranks_of_gradient(const at::Tensor& parameter) {
  auto& all = DividedGradients::instance();
  const std::lock_guard lock(all.mutex);
  const auto found = all.parameters.find(parameter.unsafeGetTensorImpl());
  return found != all.parameters.end() && !found->second.parameter.expired() ? found->second.ranks : 0;
}

}  // namespace muster
