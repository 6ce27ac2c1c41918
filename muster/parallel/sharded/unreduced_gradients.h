// What stands in the .grad of a rank's parts while gradients of no_sync() lie whole in the modules'
// parameters. No optimizer and no norm of the parts would see those, and nothing would be trained:
// so whoever reads one gets an error. Gradients that were reduced before are kept meanwhile. Used
// by FullySharded.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "muster/base/tensors.h"

namespace muster {

class UnreducedGradients {
 public:
  // `error`: what reading says.
  UnreducedGradients(const Tensors& parts, const std::string& error);

  // Until lift(), the parts' gradients are without memory.
  void put();
  // Gives back what was there. What the program has cleared, or replaced, stays so.
  void lift();

 private:
  struct Place {
    Tensor part;
    Tensor stand_in;
    Tensor reduced;  // the gradient until put(), maybe undefined
  };

  std::vector<Place> places_;
  bool put_ = false;
};

}  // namespace muster
