// Notices a step of an optimizer on gradients that no_sync(), a pipeline's step without .reduce or
// torch::autograd::grad has left on this rank. An optimizer does not say that it steps, and
// LibTorch's SGD does not count its writes: so the values of one parameter, the first whose
// gradient stayed here, are compared.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "muster/base/tensors.h"

namespace muster {

class LocalGradients {
 public:
  // A backward has added to the gradient of this parameter, and nothing averages it.
  // Blocking: no; the values are copied on the parameter's own device.
  void note(const Tensor& parameter, const std::string& name);
  // torch::autograd::grad has returned gradients to the program, and left none at this parameter.
  // Blocking: as note().
  void note_returned(const Tensor& parameter, const std::string& name);
  // Accepts what has happened to the parameter so far: a step inside of no_sync() is meant.
  void accept();
  // A reduction has averaged the gradients, or they were dropped.
  void forget() { parameter_ = Tensor(); }

  // Whether the parameter has changed since, and its gradient was cleared as after a step, or was
  // the program's own.
  // Blocking: waits for the device, but only where the gradient was cleared or returned.
  bool were_applied() const;
  bool were_returned() const { return returned_; }
  const std::string& name() const { return name_; }  // of the parameter

 private:
  bool gradient_was_cleared() const;
  bool has_other_values() const;

  Tensor parameter_;  // undefined: none
  std::string name_;
  Tensor values_;  // its first ones, at the last backward
  uint32_t gradient_version_ = 0;
  bool returned_ = false;
};

}  // namespace muster
