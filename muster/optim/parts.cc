// Parts are found by their address. A weak pointer beside it tells whether the part still lives
// there, or the address is another tensor's by now.
#include "muster/optim/parts.h"

#include <map>
#include <mutex>

namespace muster::optim {

namespace {

struct RecordedParts {
  std::mutex mutex;
  std::map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> all;

  // It is never destroyed: a program may have a model that lives until its end.
  static RecordedParts& instance() {
    static auto* const recorded = new RecordedParts;
    return *recorded;
  }
};

}  // namespace

void record_parts(const std::vector<at::Tensor>& parts) {
  auto& recorded = RecordedParts::instance();
  const std::lock_guard lock(recorded.mutex);
  std::erase_if(recorded.all, [](const auto& entry) { return entry.second.expired(); });
  for (const at::Tensor& part : parts)
    recorded.all.insert_or_assign(part.unsafeGetTensorImpl(),
                                  c10::weak_intrusive_ptr(part.getIntrusivePtr()));
}

bool is_part(const at::Tensor& tensor) {
  auto& recorded = RecordedParts::instance();
  const std::lock_guard lock(recorded.mutex);
  const auto found = recorded.all.find(tensor.unsafeGetTensorImpl());
  return found != recorded.all.end() && !found->second.expired();
}

}  // namespace muster::optim
