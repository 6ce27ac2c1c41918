// A few values of a tensor as two numbers, which are cheap enough for every backward: ranks compare
// by them what must be equal everywhere, or must not be.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "muster/base/tensors.h"

namespace muster {

struct ValueSample {
  double sum = 0;
  double size = -1;      // Euclidean; -1: nothing was sampled
  double tolerance = 0;  // relative to the size: more than roundings, on devices that differ, give

  bool is_taken() const { return size != -1; }
  // Of the same tensor on another rank. Both are false where one of them was not taken, and
  // has_bits_of() where all values are zero.
  bool differs_from(const ValueSample& other) const;
  bool has_bits_of(const ValueSample& other) const;
};

// What roundings on devices that differ may change, relative to the values of a tensor.
double roundings_of(at::ScalarType type);

// Samples values over the whole tensor; none of one that is not on the CPU, since that would wait
// for its device, nor of one that is sparse, does not fill its memory, or has none now.
// Blocking: no.
ValueSample sample_of(const Tensor& tensor);
// The same of a tensor on any device. Blocking: until a GPU has the values.
ValueSample awaited_sample_of(const Tensor& tensor);
// The same of each, with one wait for all of them.
std::vector<ValueSample> awaited_samples_of(const Tensors& tensors);

}  // namespace muster
