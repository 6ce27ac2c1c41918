// All live reducers are in one list, with one lock for it and for what each says of itself.
// Parameters are known by address, which is theirs while the model that said them lives.
#include "muster/ddp/live_reducers.h"

#include <mutex>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/lock.h"
#include "muster/base/mapped.h"
#include "muster/optim/parts.h"

namespace muster {

namespace {

// The lock is for the list and for the sets of its members.
std::mutex& mutex() {
  static std::mutex mutex;
  return mutex;
}

std::vector<LiveReducer*>& all() {
  static std::vector<LiveReducer*> all;
  return all;
}

TensorImpls addresses_of(const Tensors& tensors) {
  return mapped_to<TensorImpls>(tensors, &Tensor::unsafeGetTensorImpl);
}

// The lock is held while it looks.
template <class Predicate>
bool is_any(const Predicate& holds) {
  const Lock lock(mutex());
  return any_of(all(), holds);
}

}  // namespace

LiveReducer::LiveReducer() {
  const Lock lock(mutex());
  all().push_back(this);
}

LiveReducer::~LiveReducer() {
  const Lock lock(mutex());
  std::erase(all(), this);
}

// Both models learn that they share a parameter, whichever says it last.
void LiveReducer::set(const Tensors& parameters, const Tensors& trained, Ignores ignores) {
  const Lock lock(mutex());
  ignores_ = std::move(ignores);
  parameters_ = addresses_of(parameters);
  trained_ = addresses_of(trained);
  for (LiveReducer* other : all()) {
    if (other == this)
      continue;
    const bool common = any_of(
        parameters_, [&](const auto* parameter) { return other->parameters_.contains(parameter); });
    if (common)
      shares_ = other->shares_ = true;
  }
}

bool LiveReducer::another_awaits(const Tensor& parameter) const {
  return shares_ && is_any([&](const LiveReducer* other) {
           return other != this && other->awaits_ &&
                  other->trained_.contains(parameter.unsafeGetTensorImpl());
         });
}

bool LiveReducer::any_keeps_gradient(const Tensor& parameter) {
  return is_any([&](const LiveReducer* reducer) {
    return reducer->keeps_gradients_ && reducer->trained_.contains(parameter.unsafeGetTensorImpl());
  });
}

bool LiveReducer::any_has(const Tensor& parameter) {
  return is_any([&](const LiveReducer* reducer) { return reducer->has(parameter); });
}

bool LiveReducer::any_knows(const Tensor& parameter) {
  return is_any([&](const LiveReducer* reducer) {
    return reducer->has(parameter) || (reducer->ignores_ && reducer->ignores_(parameter));
  });
}

// The caller holds the lock.
bool LiveReducer::has(const Tensor& parameter) const {
  return parameters_.contains(parameter.unsafeGetTensorImpl());
}

bool is_of_wrapped_model(const Tensor& leaf) {
  return LiveReducer::any_knows(leaf) || optim::has_divided_gradient(leaf) ||
         optim::is_layer_part(leaf);
}

}  // namespace muster
