// What happens to a pipeline's gradients after backward: averaged over replicas, summed over the
// ranks with a tied weight. Used only by pipeline.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/parallel/parameter_memory.h"

namespace muster {

// Whether a step may average the parameter: it is trained, or was until its gradients were there.
bool may_have_gradient(const at::Tensor& parameter);

// One stage's gradients, in one message per tensor type.
class StageAverage {
 public:
  StageAverage(const std::vector<at::Tensor>& parameters, ProcessGroup replicas);
  bool has_other_memory() const { return memory_.is_other(); }
  void take_first();  // all parameters become the first replica's. Collective: over the replicas
  // Returns at once. Missing gradients count as zeros, but one that no replica has stays missing.
  // Throws: invalid_argument for a sparse gradient.
  void start();
  void finish();  // Blocking: until the averages are in grad()

 private:
  struct Bucket {
    std::vector<at::Tensor> parameters;
    at::Tensor flat = {};
    std::optional<Work> work = {};
  };
  ProcessGroup replicas_;
  ParameterMemory memory_;
  std::vector<Bucket> buckets_;
};

// A weight shared by some ranks of a group.
class TiedWeight {
 public:
  // As Pipeline::tie. `name` is its name in this rank's stage; empty if it is not a parameter of
  // it.
  TiedWeight(at::Tensor parameter, const std::string& name, ProcessGroup& group);
  bool has_other_memory() const { return memory_.is_other(); }
  void take_first();     // the copies become the first rank's. Collective: over its ranks
  void begin_step();     // sets aside what other steps have left in grad()
  void sum_gradients();  // of this step, and adds what was set aside. Collective: over its ranks
  const at::Tensor& parameter() const { return parameter_; }
  bool is_copy() const { return holders_ && holders_->rank() > 0; }  // another rank's copy counts
  // Its names on its ranks, the first rank's first: that is its name in checkpoints.
  const std::vector<std::string>& names() const { return names_; }

 private:
  at::Tensor parameter_;
  std::vector<std::string> names_;  // each once
  at::Tensor before_;
  std::optional<ProcessGroup> holders_;
  ParameterMemory memory_;
};

}  // namespace muster
