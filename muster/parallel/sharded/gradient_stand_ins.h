// What stands in parameters' .grad() while the gradients themselves lie in the ranks' parts:
// tensors of the parameters' shapes without memory. Whoever clears one (Module::zero_grad) means
// the gradient that it stands for. Whoever reads one (an optimizer of the whole parameters, a norm)
// gets an error that says where the gradients are. Used by the classes that shard gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "muster/base/functions.h"
#include "muster/base/lists.h"
#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"

namespace muster {

// It has the shape and type of `like`; a read throws `error`.
Tensor tensor_without_memory(const Tensor& like, const std::string& error);
// Whether the gradient is that stand-in. Module::zero_grad() detaches a gradient before it clears
// it: another tensor with the same storage.
bool has_storage_of(const Tensor& gradient, const Tensor& stand_in);

class GradientStandIns : NoCopy {
 public:
  // `error`: what reading says. `on_backward` is called, in one of autograd's threads, before a
  // backward adds to the gradient of any of the parameters that are trained now.
  GradientStandIns(Tensors parameters, const std::string& error, const Callback& on_backward);
  ~GradientStandIns();

  // From the next put() on a gradient of this parameter lies elsewhere.
  void stand_for(size_t parameter);

  // A backward adds to .grad(), so they are away while it runs. put() leaves whole gradients where
  // they are.
  void lift();
  void put();

  // Whether the parameter's .grad is its stand-in now.
  bool stands_in(size_t parameter) const;

  // The parameters whose gradients were cleared, or replaced, since put(); each once.
  Indices take_cleared();

 private:
  struct Place {
    Tensor parameter;
    Tensor stand_in;
    bool stands = false;           // for a gradient
    bool put = false;              // it is in .grad()
    std::optional<unsigned> hook;  // of `on_backward`
  };
  static bool has_stand_in(const Place& place);

  std::vector<Place> places_;
  bool lifted_ = false;
};

}  // namespace muster
