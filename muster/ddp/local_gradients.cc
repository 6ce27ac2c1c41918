#include "muster/ddp/local_gradients.h"

#include <ATen/ops/equal.h>

#include <algorithm>

namespace muster {

namespace {

constexpr int64_t compared_values = 4096;

// Returns a view of the first values, by which a step is noticed.
Tensor first_values(const Tensor& parameter) {
  const Tensor flat = parameter.detach().flatten();
  return flat.narrow(0, 0, std::min(flat.numel(), compared_values));
}

}  // namespace

void LocalGradients::note(const Tensor& parameter, const std::string& name) {
  if (parameter_.defined() && !parameter_.is_same(parameter))
    return;
  parameter_ = parameter;
  name_ = name;
  values_ = first_values(parameter).clone();
  gradient_version_ = parameter.grad().defined() ? parameter.grad()._version() : 0;
  returned_ = false;
}

void LocalGradients::note_returned(const Tensor& parameter, const std::string& name) {
  if (parameter_.defined())
    return;
  note(parameter, name);
  returned_ = true;
}

void LocalGradients::accept() {
  if (parameter_.defined())
    values_ = first_values(parameter_).clone();
}

bool LocalGradients::gradient_was_cleared() const {
  const Tensor& gradient = parameter_.grad();
  return !gradient.defined() || gradient._version() != gradient_version_;
}

// A parameter of another type or device was converted, and no step has done that.
bool LocalGradients::has_other_values() const {
  const Tensor now = first_values(parameter_);
  if (!now.options().type_equal(values_.options()) || now.numel() != values_.numel())
    return false;
  return !at::equal(values_, now);
}

bool LocalGradients::were_applied() const {
  return parameter_.defined() && (returned_ || gradient_was_cleared()) && has_other_values();
}

}  // namespace muster
