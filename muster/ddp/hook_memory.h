// What a hook remembers of each parameter: by its name, since buckets are cut anew, after the first step and
// whenever parameters are frozen. What a step has left counts once the step has ended well.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "muster/ddp/hooks.h"

namespace muster {

// Whether all averages of a step are finite. Averages are the same on all ranks, and so is the answer.
class FiniteStep {
 public:
  void look(const at::Tensor& average);
  // Begins anew. Blocking: for the GPU.
  bool end();

 private:
  std::vector<at::Tensor> largest_;
};

class HookMemory {
 public:
  // To the bucket's tensor; nothing for a parameter that is new, or of another size now.
  void add_to(const GradientBucket& bucket) const;
  // Parts of `flat`, which has the bucket's shape and is kept.
  void keep(const GradientBucket& bucket, const at::Tensor& flat);

  at::Tensor find(const std::string& name) const;  // undefined where there is none
  void set(const std::string& name, at::Tensor tensor) { left_[name] = std::move(tensor); }
  // What the step has left is remembered, or dropped.
  void end_step(bool remembers);
  void rescale(double factor);

  // Names with `prefix` before the parameters'.
  std::map<std::string, at::Tensor> copies(const std::string& prefix) const;
  void load(const std::string& prefix, const std::map<std::string, at::Tensor>& tensors);

 private:
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, at::Tensor> left_;  // by the step under way
};

// What names a state may have: prefixes of tensors, whole numbers.
struct HookStateNames {
  std::vector<std::string> tensors, own, numbers;
};
// Throws: invalid_argument for another.
void check_hook_state(const std::string& hook, const HookState& state, const HookStateNames& known);

}  // namespace muster
