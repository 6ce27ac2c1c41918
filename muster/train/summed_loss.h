// A loss that is a mean over some of a batch's samples, such as the labels that are not
// ignore_index. Micro-batches and ranks have different numbers of them, so the mean of their means
// is not the mean over all. TrainStep takes the sum and the number instead:
//
//   step(batch, [&]() -> muster::SummedLoss {
//     const auto logits = model(batch.tokens);
//     return {.sum = torch::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::Sum, -100),
//             .count = (batch.labels != -100).sum()};
//   });
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

// Shapes: both one element.
struct SummedLoss {
  Tensor sum;    // of the losses of this batch, computed from the model
  Tensor count;  // how many losses are in it, or the sum of their weights; may be 0
};

// The same as two scalars on the device of the sum, the count in double. `place` tells of the rank
// and the step in errors. Throws: invalid_argument for another shape.
SummedLoss as_scalars(const SummedLoss& loss, const std::string& place);

// The batch's own mean, detached; 0 where there are none.
Tensor mean_of(const SummedLoss& loss);

// Counts the losses of a step's micro-batches.
class LossCounts {
 public:
  // Returns what the micro-batch's gradients are of: the sum in units of about a batch's count, so
  // that it is no larger than a mean in types of little range. The unit is the first batch's, a
  // power of two, which changes no bit of a gradient. Shapes: as_scalars(). Collective: over the
  // group, once.
  Tensor add(const SummedLoss& loss, std::optional<ProcessGroup>& group);

  // What the step's gradients are to be multiplied by, scalars on the loss's device:
  // gradients that are the ranks' average, and those of this rank alone. Collective: over the
  // group.
  struct Factors {
    Tensor averaged;
    Tensor own;
  };
  Factors factors(std::optional<ProcessGroup>& group) const;

  bool empty() const { return !count_.defined(); }
  void clear() { count_.reset(); }

  // What a resumed training goes on with: hooks keep errors in this unit. 0: there is none yet.
  // Blocking: for the GPU.
  double unit() const;
  void set_unit(double unit);

 private:
  void note(const Tensor& count, std::optional<ProcessGroup>& group);

  Tensor unit_;
  Tensor count_;  // of this rank, in the step so far
};

}  // namespace muster
