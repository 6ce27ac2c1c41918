// Finds, within the step, ranks that average gradients of different steps: one of them has skipped a backward
// (`if (isnan(loss)) continue;`), and from then on its all_reduces meet those of its peers' earlier step, of
// the same shapes. Every rank tells the others the number of its step while backward runs.
//
// A step is a backward that is reduced. A forward whose outputs were dropped without a backward counts as one
// that this rank has skipped.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

class StepCheck {
 public:
  // Lives as long as the graph of a forward's outputs does.
  using Outputs = std::shared_ptr<void>;

  explicit StepCheck(ProcessGroup group);

  // A forward in training that is to be reduced. What it returns is kept by the graph.
  Outputs begin_forward();

  // The backward of the last forwards has begun. Collective.
  void begin_backward();
  // It has ended. Blocking: until every rank has begun this backward. Throws: failed_precondition, on every
  // rank, with the steps of all.
  void end_backward();

  // Forgets a backward that an exception cut short.
  void reset();

 private:
  ProcessGroup group_;
  int64_t step_ = 0;
  int64_t skipped_ = 0;                        // of these, forwards without a backward
  std::vector<std::weak_ptr<void>> forwards_;  // since the last backward that was reduced
  at::Tensor all_;                             // [ranks, 2]: step, skipped
  std::optional<Work> work_;
};

}  // namespace muster
