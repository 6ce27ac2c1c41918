// Whether the replicas of a pipeline train as data parallelism means: each on samples of its own,
// and all to the same weights. They exchange a few values at the end of each step. On CPUs only,
// since a sample waits for its device. Used only by replicas.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/same_samples.h"
#include "muster/ddp/value_sample.h"

namespace muster {

class ReplicaSamples {
 public:
  // A stage's gradients are complete, and not averaged yet. The last matrix's is sampled.
  void take_gradients(const Tensors& parameters);
  // The step has ended; each step samples another of the parameters. The first replica warns, once
  // of each kind. Collective: yes. Blocking: yes.
  void compare(const Tensors& parameters, ProcessGroup& group);

 private:
  // What a replica says of a step.
  struct Row {
    RankGradient gradient;
    ValueSample weights;
  };
  void judge_gradients(const std::vector<Row>& rows, const ProcessGroup& group);
  void judge_weights(const std::vector<Row>& rows, const ProcessGroup& group);

  int64_t steps_ = 0;
  bool watches_weights_ = true;
  ValueSample gradient_;
  SameSamples same_samples_;
};

}  // namespace muster
