// Marks are counted by the parameter's address. A weak pointer beside it tells whether the
// parameter still lives there, or the address is another tensor's by now.
#include "muster/ddp/divided_gradients.h"

#include <map>
#include <mutex>

namespace muster {

namespace {

class MarkedParameters {
 public:
  void mark(const std::vector<at::Tensor>& parameters) {
    const std::lock_guard lock(mutex_);
    std::erase_if(marks_, [](const auto& entry) { return entry.second.parameter.expired(); });
    for (const at::Tensor& parameter : parameters) {
      const c10::weak_intrusive_ptr<c10::TensorImpl> weak(parameter.getIntrusivePtr());
      const auto mark = marks_.try_emplace(parameter.unsafeGetTensorImpl(), Mark{weak}).first;
      ++mark->second.count;
    }
  }

  void unmark(const std::vector<at::Tensor>& parameters) {
    const std::lock_guard lock(mutex_);
    for (const at::Tensor& parameter : parameters) {
      const auto found = marks_.find(parameter.unsafeGetTensorImpl());
      if (found != marks_.end() && --found->second.count == 0)
        marks_.erase(found);
    }
  }

  bool has(const at::Tensor& parameter) {
    const std::lock_guard lock(mutex_);
    const auto found = marks_.find(parameter.unsafeGetTensorImpl());
    return found != marks_.end() && !found->second.parameter.expired();
  }

 private:
  struct Mark {
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    int count = 0;
  };

  std::mutex mutex_;
  std::map<const c10::TensorImpl*, Mark> marks_;
};

// They are never destroyed: a program may have an optimizer that lives until its end.
MarkedParameters& with_divided_gradients() {
  static auto* const all = new MarkedParameters;
  return *all;
}

MarkedParameters& of_divided_layers() {
  static auto* const all = new MarkedParameters;
  return *all;
}

}  // namespace

void mark_divided_gradients(const std::vector<at::Tensor>& parameters) {
  with_divided_gradients().mark(parameters);
}

void unmark_divided_gradients(const std::vector<at::Tensor>& parameters) {
  with_divided_gradients().unmark(parameters);
}

bool has_divided_gradient(const at::Tensor& parameter) {
  return with_divided_gradients().has(parameter);
}

void mark_layer_parts(const std::vector<at::Tensor>& parameters) {
  of_divided_layers().mark(parameters);
}

bool is_layer_part(const at::Tensor& parameter) {
  return of_divided_layers().has(parameter);
}

}  // namespace muster
