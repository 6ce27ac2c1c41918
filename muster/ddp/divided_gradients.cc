// Marks are counted by the parameter's address. A weak pointer beside it tells whether the
// parameter still lives there, or the address is another tensor's by now.
#include "muster/ddp/divided_gradients.h"

#include <map>
#include <mutex>

namespace muster {

namespace {

struct DividedMark {
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  int marks = 0;
};

struct DividedGradients {
  std::mutex mutex;
  std::map<const c10::TensorImpl*, DividedMark> parameters;

  // It is never destroyed: a program may have an optimizer that lives until its end.
  static DividedGradients& instance() {
    static auto* const all = new DividedGradients;
    return *all;
  }
};

}  // namespace

void mark_divided_gradients(const std::vector<at::Tensor>& parameters) {
  auto& all = DividedGradients::instance();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.parameters, [](const auto& entry) { return entry.second.parameter.expired(); });
  for (const at::Tensor& parameter : parameters) {
    const c10::weak_intrusive_ptr<c10::TensorImpl> weak(parameter.getIntrusivePtr());
    const auto mark =
        all.parameters.try_emplace(parameter.unsafeGetTensorImpl(), DividedMark{weak}).first;
    ++mark->second.marks;
  }
}

void unmark_divided_gradients(const std::vector<at::Tensor>& parameters) {
  auto& all = DividedGradients::instance();
  const std::lock_guard lock(all.mutex);
  for (const at::Tensor& parameter : parameters) {
    const auto found = all.parameters.find(parameter.unsafeGetTensorImpl());
    if (found != all.parameters.end() && --found->second.marks == 0)
      all.parameters.erase(found);
  }
}

bool has_divided_gradient(const at::Tensor& parameter) {
  auto& all = DividedGradients::instance();
  const std::lock_guard lock(all.mutex);
  const auto found = all.parameters.find(parameter.unsafeGetTensorImpl());
  return found != all.parameters.end() && !found->second.parameter.expired();
}

}  // namespace muster
