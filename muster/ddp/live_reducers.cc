#include "muster/ddp/live_reducers.h"

#include <algorithm>
#include <mutex>

namespace muster {

namespace {

// Also for what the live ones have.
std::mutex& mutex() {
  static std::mutex mutex;
  return mutex;
}

std::vector<LiveReducer*>& all() {
  static std::vector<LiveReducer*> all;
  return all;
}

std::set<const c10::TensorImpl*> addresses_of(const std::vector<at::Tensor>& tensors) {
  std::set<const c10::TensorImpl*> found;
  for (const at::Tensor& tensor : tensors)
    found.insert(tensor.unsafeGetTensorImpl());
  return found;
}

}  // namespace

LiveReducer::LiveReducer() {
  const std::lock_guard lock(mutex());
  all().push_back(this);
}

LiveReducer::~LiveReducer() {
  const std::lock_guard lock(mutex());
  std::erase(all(), this);
}

void LiveReducer::set(const std::vector<at::Tensor>& parameters,
                      const std::vector<at::Tensor>& trained) {
  const std::lock_guard lock(mutex());
  parameters_ = addresses_of(parameters);
  trained_ = addresses_of(trained);
  for (LiveReducer* other : all()) {
    if (other == this)
      continue;
    const bool common =
        std::any_of(parameters_.begin(), parameters_.end(), [&](const auto* parameter) {
          return other->parameters_.contains(parameter);
        });
    if (common)
      shares_ = other->shares_ = true;
  }
}

bool LiveReducer::another_awaits(const at::Tensor& parameter) const {
  const std::lock_guard lock(mutex());
  return std::any_of(all().begin(), all().end(), [&](const LiveReducer* other) {
    return other != this && other->awaits_ &&
           other->trained_.contains(parameter.unsafeGetTensorImpl());
  });
}

bool LiveReducer::any_has(const at::Tensor& parameter) {
  const std::lock_guard lock(mutex());
  return std::any_of(all().begin(), all().end(), [&](const LiveReducer* reducer) {
    return reducer->parameters_.contains(parameter.unsafeGetTensorImpl());
  });
}

}  // namespace muster
