// Local SGD: every rank trains alone, and every H steps the ranks average their parameters.
//
//   muster::LocalSGD local(net->parameters(), ctx.process_group(), {.every = 8, .start = 500});
//   … loss.backward(); optimizer.step();
//   local.step();
//
// The model is the user's own, not wrapped in DistributedDataParallel: there is nothing to wait for in a
// backward. The optimizer's own state (momentum, Adam's moments) stays each rank's. Several hosts: `inside`
// is the group of this rank's host, averaged in every step, and the group given joins the hosts.
// To go on after any step, save each rank's own (checkpoint/tensor_pieces.h):
//
//   const auto pieces = muster::own_pieces(*net);
//   checkpoints.add("model", pieces).add("optimizer", optimizer, pieces).add("local", local);
//
// Source: Stich, "Local SGD Converges Fast and Communicates Little" (2019); Lin et al., "Don't Use Large
// Mini-Batches, Use Local SGD" (2020), for `start`; torch's PostLocalSGDOptimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/parallel/named_state.h"

namespace muster {

struct LocalSGDOptions {
  int64_t every = 8;  // H: steps between two averages
  int64_t start = 0;  // the first steps, each with an average, which steady a model that changes fast
  std::optional<ProcessGroup> inside = {};  // averaged in every step: the ranks that a fast link joins
  // Averaged with the parameters, every time (batch norm's statistics); those of whole numbers stay as they
  // are.
  std::vector<at::Tensor> buffers = {};
};

class LocalSGD {
 public:
  // Collective: over both groups. Throws: invalid_argument, on every rank, for an `every` below 1, a `start`
  // below 0, and for parameters, buffers or options that differ between ranks.
  LocalSGD(std::vector<at::Tensor> parameters, ProcessGroup group, LocalSGDOptions options = {});

  // After the optimizer's step. True where all ranks have the same parameters now. Collective: in every H-th
  // step (with `inside`: in every step).
  bool step();

  // Averages now, whatever the step: before an evaluation, a checkpoint, the end. Collective: yes.
  void average();

  int64_t steps() const { return steps_; }

  // The number of steps. Parameters differ between ranks until the next average: save own_pieces, or where
  // step() is true.
  NamedState state() const { return {.numbers = {{"steps", static_cast<double>(steps_)}}, .tensors = {}}; }
  template <class State>
  void load_state(const State& state) {
    steps_ = static_cast<int64_t>(NamedState::from(state).number("LocalSGD", "steps"));
  }

 private:
  ProcessGroup group_;
  LocalSGDOptions options_;
  std::vector<at::Tensor> averaged_;
  int64_t steps_ = 0;
};

}  // namespace muster
