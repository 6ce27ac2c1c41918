// DiLoCo: every rank trains H steps with its own optimizer. Then an outer optimizer moves the
// common model by the average movement of the ranks' models.
//
//   muster::DiLoCo outer(*net, ctx.process_group(), {.every = 100});
//   … loss.backward(); adamw.step();
//   outer.step();
//
// The outer gradient is (common model − mean of the ranks' models); the outer optimizer is SGD with
// Nesterov momentum. With learning rate 1 and no momentum it equals local SGD. Source: Douillard et
// al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "muster/base/tensors.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/averaging/given_parameters.h"
#include "muster/parallel/parameter_memory.h"

namespace muster {

struct DiLoCoOptions {
  int64_t every = 100;         // H: inner steps between two outer steps
  double learning_rate = 0.7;  // of the outer optimizer, like its momentum
  double momentum = 0.9;
  bool nesterov = true;
  Tensors buffers{};  // averaged at every outer step, except integer buffers
};

class DiLoCo {
 public:
  // Keeps two copies of the parameters: of a list, or of a model.
  // Collective: over the group.
  // Throws: invalid_argument, on every rank, for an `every` below 1, a learning rate that is not
  // positive, a momentum outside [0, 1), and for parameters, buffers or options that differ between
  // ranks. Later calls throw failed_precondition, as LocalSGD's.
  DiLoCo(const GivenParameters& parameters, ProcessGroup group, DiLoCoOptions options = {});

  // Makes the parameters as they are now the common model: call it where weights were loaded after
  // the constructor, before the next step. Momentum and steps stay. Collective: over the group.
  // Throws: invalid_argument, on every rank, for parameters that differ between ranks.
  void take_present();

  // Call it after the inner optimizer's step. Returns true after an outer step: all ranks then have
  // the same parameters. What no rank trains any more keeps its values. The first rank warns once
  // where parameters have got other memory (torch::load) without take_present(). Collective: at
  // every H-th step.
  bool step();

  int64_t steps() const { return steps_; }  // inner steps

  // The common model, the momentum and the number of steps, the same on every rank. The ranks' own
  // models differ until the next outer step: save own_pieces (checkpoint/tensor_pieces.h), or save
  // when step() returns true.
  SavedState state() const;
  // Throws: invalid_argument for a state of another model; then nothing is changed.
  void load_state(const SavedState& state);
  // Checkpoints calls it on all ranks when the model is restored. Where the training had no DiLoCo,
  // or this one begins anew, the restored model is the common one. Collective and throws: as
  // take_present().
  template <class Beginning>
  void begin(Beginning /*beginning*/) {
    if (!is_loaded_ && steps_ == 0)
      take_present();
  }

 private:
  void warn_of_other_memory();
  void step_outside();
  const Tensors& present_parameters() const;

  ProcessGroup group_;
  DiLoCoOptions options_;
  std::shared_ptr<const TensorsOfModel> model_;
  ParameterMemory memory_;
  Tensors buffers_;
  Tensors common_;    // the parameters after the last outer step
  Tensors momentum_;  // empty before the first
  int64_t steps_ = 0;
  bool is_loaded_ = false;  // from a state
  bool warned_ = false;     // of other memory
};

}  // namespace muster
