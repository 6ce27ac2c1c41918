// Gradients without memory, in place of those that were reduced into the ranks' parts. Whoever
// reads one gets an error that says where the gradients are. Whoever clears one (zero_grad) is
// noticed, and the parts are cleared too. During a backward the stand-ins are lifted, since
// autograd would add to them.
#include "muster/parallel/sharded/gradient_stand_ins.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "muster/base/indices_of.h"
#include "muster/base/torch_names.h"
#include "muster/comm/torch_compat.h"

namespace muster {

// An empty storage under a shape: sizes and types may be asked for, values may not.
Tensor tensor_without_memory(const Tensor& like, const std::string& error) {
  const NoGradGuard no_grad;
  const Tensor tensor = at::empty({0}, like.options().requires_grad(false));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(like.sizes());
  refuse_reads_for_good(*tensor.storage().unsafeGetStorageImpl(), error);
  return tensor;
}

bool has_storage_of(const Tensor& gradient, const Tensor& stand_in) {
  return gradient.defined() && gradient.has_storage() &&
         gradient.storage().unsafeGetStorageImpl() == stand_in.storage().unsafeGetStorageImpl();
}

// The thread of the backward runs `on_backward` whenever a gradient comes to a parameter.
GradientStandIns::GradientStandIns(Tensors parameters,
                                   const std::string& error,
                                   const Callback& on_backward) {
  for (Tensor& parameter : parameters) {
    Place& place = places_.emplace_back();
    place.stand_in = tensor_without_memory(parameter, error);
    if (parameter.requires_grad())
      place.hook = parameter.register_hook([on_backward](const Tensor&) { on_backward(); });
    place.parameter = std::move(parameter);
  }
}

// The parameters outlive this object, and must keep neither stand-ins nor hooks.
GradientStandIns::~GradientStandIns() {
  lift();
  for (const Place& place : places_)
    if (place.hook)
      place.parameter.remove_hook(*place.hook);
}

bool GradientStandIns::has_stand_in(const Place& place) {
  return has_storage_of(place.parameter.grad(), place.stand_in);
}

bool GradientStandIns::stands_in(size_t parameter) const {
  return has_stand_in(places_[parameter]);
}

// It only notes the parameter: put() gives it the stand-in after the backward.
void GradientStandIns::stand_for(size_t parameter) {
  places_[parameter].stands = true;
}

// Gradients that the program has set itself stay.
void GradientStandIns::lift() {
  lifted_ = true;
  for (Place& place : places_) {
    if (place.put && has_stand_in(place))
      place.parameter.mutable_grad().reset();
    place.put = false;
  }
}

void GradientStandIns::put() {
  lifted_ = false;
  for (Place& place : places_) {
    if (!place.stands || place.parameter.grad().defined())
      continue;
    place.parameter.mutable_grad() = place.stand_in;
    place.put = true;
  }
}

// It returns nothing during a backward, since the stand-ins are lifted then.
Indices GradientStandIns::take_cleared() {
  Indices cleared;
  if (lifted_)
    return cleared;
  for (const size_t i : indices_of(places_)) {
    Place& place = places_[i];
    const bool is_left = place.put ? has_stand_in(place) : place.parameter.grad().defined();
    if (!place.stands || is_left)
      continue;
    cleared.push_back(i);
    place.stands = false;
    place.put = false;
  }
  return cleared;
}

}  // namespace muster
