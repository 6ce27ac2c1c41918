// A hook remembers tensors of each parameter, by name, because buckets change after the first step
// and whenever parameters are frozen. What a step has left counts only once the step has ended
// well.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/ddp/hooks.h"

namespace muster {

// Whether all averages of a step are finite. Averages are the same on all ranks, and so is the
// answer.
class FiniteStep {
 public:
  void look(const Tensor& average);
  // Returns the answer and starts anew. Blocking: for the GPU.
  bool end();

 private:
  Tensors largest_;
};

class HookMemory {
 public:
  // Adds to the bucket's tensor; nothing for a parameter that is new or has another size now.
  void add_to(const GradientBucket& bucket) const;
  // Keeps the parts of `flat`, which has the bucket's shape and stays in use.
  void keep(const GradientBucket& bucket, const Tensor& flat);

  Tensor find(const std::string& name) const;  // undefined if there is none
  void set(const std::string& name, Tensor tensor) { left_[name] = std::move(tensor); }
  // Remembers or drops what the step has left.
  void end_step(bool remembers);
  void rescale(double factor);

  // The names are `prefix` followed by the parameters' names.
  NamedTensors copies(const std::string& prefix) const;
  void load(const std::string& prefix, const NamedTensors& tensors);

 private:
  NamedTensors tensors_;
  NamedTensors left_;  // from the current step
};

// The names that a state may have: prefixes of tensors, integers.
struct HookStateNames {
  Strings tensors, own, numbers;
};
// Throws: invalid_argument for any other name.
void check_hook_state(const std::string& hook, const HookState& state, const HookStateNames& known);

}  // namespace muster
