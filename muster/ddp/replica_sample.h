// A few weights of this rank as two numbers, which are cheap enough for every backward. The ranks
// compare them to notice replicas that train apart: another learning rate, a weight that one rank
// has written to, a step that one rank has left out. ReplicaCheck compares every bit, where asked.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster {

struct ReplicaSample {
  double sum = 0;
  double size = -1;      // Euclidean; -1: nothing was sampled
  double tolerance = 0;  // relative to the size: more than roundings, on devices that differ, give

  bool is_taken() const { return size != -1; }
  // Of the same parameter on another rank. False where one of them was not taken.
  bool differs_from(const ReplicaSample& other) const;
};

// Samples values over the whole parameter; none of one that is not on the CPU, since that would
// wait for its device. Blocking: no.
ReplicaSample sample_of(const at::Tensor& parameter);

}  // namespace muster
