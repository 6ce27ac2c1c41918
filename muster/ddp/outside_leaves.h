// Trained tensors that no wrapped model has: the scale of a loss, a member that was never
// registered. Nothing averages their gradients, so each rank trains them apart. The graphs of the
// first backwards show them, and the ranks compare samples of their values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/value_sample.h"

namespace muster {

// What a rank says of the leaves that it watches. Sums over leaves do not depend on their order.
struct LeavesSample {
  int64_t leaves = 0;
  ValueSample first = {};    // when they were seen first
  ValueSample present = {};  // now
};

class OutsideLeaves {
 public:
  using IsKnown = std::function<bool(const Tensor&)>;
  static constexpr int looked_backwards = 4;

  // Looks at the graph of the backward that runs, in the first backwards. `is_known` leaves are
  // another's to watch. Call it from a hook of that backward.
  void look(const IsKnown& is_known);
  // The same for the leaves of a backward, each once.
  void look(const Tensors& leaves, const IsKnown& is_known);
  // Whether the next backward is one of the first.
  bool is_looking() const { return !is_decided_ && looks_ < looked_backwards; }
  // Samples the leaves that several backwards had in common. Blocking: no.
  LeavesSample sample() const;
  // Takes the samples of all ranks. Returns, once, whether leaves that were equal on all of them
  // have come apart.
  bool judge(const std::vector<LeavesSample>& samples);
  // "a tensor of shape [1]", "2 tensors, one of shape [10, 64]".
  std::string description() const;

 private:
  using WeakTensor = c10::weak_intrusive_ptr<TensorImpl, at::UndefinedTensorImpl>;
  struct Leaf {
    WeakTensor tensor;
    ValueSample first;
    int seen = 1;
  };

  struct Watched {
    Tensor tensor;
    ValueSample first;
  };

  void note(const Tensor& tensor);
  std::vector<Watched> watched() const;

  std::vector<Leaf> leaves_;
  int looks_ = 0;
  int judged_ = 0;
  bool is_decided_ = false;
};

// The warning of leaves that have come apart, by this rank of the job.
std::string outside_leaves_warning(const OutsideLeaves& leaves, int64_t rank);

}  // namespace muster
