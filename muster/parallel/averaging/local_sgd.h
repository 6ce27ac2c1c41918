// Local SGD: every rank trains alone, and the ranks average their parameters every H steps.
//
//   muster::LocalSGD local(*net, ctx.process_group(), {.every = 8, .start = 500});
//   … loss.backward(); optimizer.step();
//   local.step();
//
// Do not wrap the model in DistributedDataParallel: backwards need not wait for anything. The
// optimizer's state (momentum, Adam's moments) stays local to each rank. With several hosts, set
// `inside` to the group of this rank's host, which is averaged in every step, and pass a group that
// connects the hosts. To be able to resume after any step, save each rank's own parts
// (checkpoint/tensor_pieces.h):
//
//   const auto pieces = muster::own_pieces(*net);
//   checkpoints.add("model", pieces).add("optimizer", optimizer, pieces).add("local", local);
//
// Source: Stich, "Local SGD Converges Fast and Communicates Little" (2019); Lin et al., "Don't Use
// Large Mini-Batches, Use Local SGD" (2020), for `start`; torch's PostLocalSGDOptimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "muster/base/tensors.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/averaging/given_parameters.h"

namespace muster {

struct LocalSGDOptions {
  int64_t every = 8;  // H: steps between two averages
  int64_t start = 0;  // initial steps that average every time, while the model changes fast
  std::optional<ProcessGroup> inside{};  // averaged in every step: ranks joined by a fast link
  // Averaged whenever the parameters are (batch norm statistics), except integer buffers.
  Tensors buffers{};
};

class LocalSGD {
 public:
  // `parameters`: a list, or a model. Collective: over both groups.
  // Throws: invalid_argument, on every rank, for an `every` below 1, a negative `start`, and for
  // parameters, buffers or options that differ between ranks. Later calls throw failed_precondition
  // for a module of the model that was replaced (given_parameters.h).
  LocalSGD(const GivenParameters& parameters, ProcessGroup group, LocalSGDOptions options = {});

  // Call it after the optimizer's step. Returns whether all ranks now have the same parameters.
  // Collective: at every H-th step (with `inside`: at every step).
  bool step();

  // Averages now, at any step: before an evaluation, a checkpoint, the end. Collective: yes.
  void average();

  int64_t steps() const { return steps_; }

  // The number of steps. Parameters differ between ranks until the next average: save own_pieces,
  // or save when step() returns true.
  SavedState state() const { return {.numbers = {{"steps", as_number(steps_)}}}; }
  void load_state(const SavedState& state) { steps_ = state.whole_number("LocalSGD", "steps"); }

 private:
  void average_in(ProcessGroup& group);

  ProcessGroup group_;
  LocalSGDOptions options_;
  std::shared_ptr<const TensorsOfModel> model_;
  Tensors averaged_;
  int64_t steps_ = 0;
};

}  // namespace muster
