// A step's tensors are in left_ until the step has ended. end_step() moves them to tensors_, or
// drops them where an average was not finite.
#include "muster/ddp/hook_memory.h"

#include <ATen/Functions.h>

#include <cstdint>
#include <limits>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"

namespace muster {

// The largest absolute number is infinite or NaN where any number is.
void FiniteStep::look(const Tensor& average) {
  if (average.numel() > 0)
    largest_.push_back(at::linalg_vector_norm(average, std::numeric_limits<double>::infinity()));
}

// One wait for all buckets, whose types may differ.
bool FiniteStep::end() {
  const Tensors finite = mapped(std::exchange(largest_, {}), &Tensor::isfinite);
  return finite.empty() || at::stack(finite).all().item<bool>();
}

Tensor HookMemory::find(const std::string& name) const {
  return find_or(tensors_, name);
}

// A parameter that has another size now has no error that would fit.
void HookMemory::add_to(const GradientBucket& bucket) const {
  for (const size_t i : indices_of(bucket.names)) {
    const Tensor error = find(bucket.names[i]);
    const Tensor& gradient = bucket.gradients[i];
    if (!error.defined() || error.numel() != gradient.numel())
      continue;
    gradient.view(-1).add_(error.to(gradient.options()));
  }
}

// The parts are views of `flat`, not copies.
void HookMemory::keep(const GradientBucket& bucket, const Tensor& flat) {
  int64_t begin = 0;
  for (const size_t i : indices_of(bucket.names)) {
    const int64_t size = bucket.gradients[i].numel();
    left_[bucket.names[i]] = flat.slice(0, begin, begin + size);
    begin += size;
  }
}

void HookMemory::end_step(bool remembers) {
  if (remembers) {
    for (auto& [name, tensor] : left_)
      tensors_[name] = std::move(tensor);
  }
  left_.clear();
}

void HookMemory::rescale(double factor) {
  for (auto& [name, tensor] : tensors_)
    tensor.mul_(factor);
}

NamedTensors HookMemory::copies(const std::string& prefix) const {
  NamedTensors found;
  for (const auto& [name, tensor] : tensors_)
    found[prefix + name] = tensor.clone();
  return found;
}

void HookMemory::load(const std::string& prefix, const NamedTensors& tensors) {
  tensors_.clear();
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix))
      tensors_[name.substr(prefix.size())] = tensor.clone();
  }
}

// A state of another hook has other names.
void check_hook_state(const std::string& hook,
                      const HookState& state,
                      const HookStateNames& known) {
  const auto check = [&](const auto& items, const Strings& prefixes) {
    for (const auto& [name, value] : items) {
      const std::string& text = name;  // a lambda cannot capture a structured binding
      const bool is_known =
          any_of(prefixes, [&](const std::string& prefix) { return text.starts_with(prefix); });
      if (is_known)
        continue;
      throw invalid_argument("hook: expected a state of ",
                             hook,
                             ", got one with '",
                             name,
                             "'; give the hook that saved it");
    }
  };
  check(state.tensors, known.tensors);
  check(state.own, known.own);
  check(state.numbers, known.numbers);
}

}  // namespace muster
