// Warns of ranks that train otherwise than data parallelism means, by samples that travel with the
// step check. Weights that differ: a learning rate of each rank's own, a weight that one rank has
// written to, a step taken twice. Gradients that are equal before their average: the ranks train on
// the same samples. Models in another mode, as after an evaluation on one rank. Trained tensors
// outside of the wrapped models that come to differ. ReplicaCheck compares every bit of the
// weights, where asked.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/options.h"
#include "muster/ddp/outside_leaves.h"
#include "muster/ddp/same_samples.h"
#include "muster/ddp/step_check.h"
#include "muster/ddp/trained_parameters.h"
#include "muster/ddp/value_sample.h"

namespace muster {

class ReplicaWatch {
 public:
  ReplicaWatch(const ProcessGroup& group, const DdpOptions& options);

  // A backward that will be averaged runs, and has called this from a hook.
  void look_outside();
  // This rank's gradient of TrainedParameters::told_by has arrived, and is not averaged yet.
  void take_gradient(const Tensor& gradient);
  // What this rank says of its next step. Each backward samples another parameter's weights.
  StepSamples take(const TrainedParameters& trained, int64_t backwards, bool is_training);
  // The first rank warns, once of each kind. `steps` has what every rank said; none: nothing was
  // compared.
  void judge(const RankSteps& steps, const TrainedParameters& trained);

 private:
  void judge_weights(const RankSteps& steps, const TrainedParameters& trained);
  void judge_gradients(const RankSteps& steps);
  void judge_modes(const RankSteps& steps);
  void judge_outside(const RankSteps& steps);
  void warn(const std::string& text) const;

  ProcessGroup group_;
  bool watches_weights_;
  bool watches_gradients_;
  bool watches_modes_;
  bool watches_outside_;
  ValueSample gradient_;
  SameSamples same_samples_;
  OutsideLeaves outside_;
};

}  // namespace muster
