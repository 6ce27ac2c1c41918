// What happens to a pipeline's gradients after backward: averaged over replicas, summed over the
// ranks with a tied weight. Used only by pipeline.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/nn/module.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/parameter_memory.h"

namespace muster {

// Whether a step may average the parameter: it is trained, or was until its gradients were there.
bool may_have_gradient(const Tensor& parameter);

// One stage's gradients, in one message per tensor type.
class StageAverage {
 public:
  StageAverage(const Tensors& parameters, ProcessGroup replicas);
  bool has_other_memory() const { return memory_.is_other(); }
  void take_first();  // all parameters become the first replica's. Collective: over the replicas
  // Returns at once. Missing gradients count as zeros, but one that no replica has stays missing.
  // Throws: invalid_argument for a sparse gradient.
  void start();
  void finish();  // Blocking: until the averages are in grad()

 private:
  struct Bucket {
    Tensors parameters;
    Tensor flat = {};
    std::optional<Work> work = {};
  };
  ProcessGroup replicas_;
  ParameterMemory memory_;
  std::vector<Bucket> buckets_;
};

// Where a stage of this rank has a parameter; without a module it is not theirs.
struct StagePlace {
  ModulePtr module = {};
  std::string name = {};
  Tensor parameter_now() const;  // undefined: none has the name
};

// A weight shared by some ranks of a group.
class TiedWeight {
 public:
  // As Pipeline::tie.
  TiedWeight(Tensor parameter, StagePlace place, ProcessGroup& group);
  void look_again();  // takes the tensor that its stage has under its name now
  bool is_replaced() const { return !parameter_.is_same(agreed_); }
  // Begins to tie what all its ranks have put in its place. Collective: over `group`. Throws:
  // invalid_argument, on every rank, for copies whose shapes or types differ.
  void agree_again(ProcessGroup& group);
  bool has_other_memory() const { return memory_.is_other(); }
  void take_first();     // the copies become the first rank's. Collective: over its ranks
  void begin_step();     // sets aside what other steps have left in grad()
  void sum_gradients();  // of this step, and adds what was set aside. Collective: over its ranks
  const Tensor& parameter() const { return parameter_; }
  bool is_copy() const { return is_copy_; }  // a stage of an earlier rank has it too
  // Its names on its ranks, the first rank's first: that is its name in checkpoints.
  const Strings& names() const { return names_; }

 private:
  Tensor parameter_;
  Tensor agreed_;  // the parameter that the ranks have tied
  StagePlace place_;
  Strings names_;  // each once
  bool is_copy_ = false;
  Tensor before_;
  std::optional<ProcessGroup> holders_;
  ParameterMemory memory_;
};
using TiedWeights = std::deque<TiedWeight>;

}  // namespace muster
