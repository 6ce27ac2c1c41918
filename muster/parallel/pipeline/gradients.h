// What happens to a pipeline's gradients after backward: averaged over replicas, summed over the
// ranks with a tied weight. Used only by pipeline.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

// Where parameters have their values. torch::load, vector_to_parameters and others give them other
// memory, and with it other values.
class ParameterMemory {
 public:
  explicit ParameterMemory(std::vector<at::Tensor> parameters);
  bool is_other() const;  // than it was when this was made or last remembered
  void remember();
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> known_;
};

// One stage's gradients, in one message per tensor type.
class StageAverage {
 public:
  StageAverage(const std::vector<at::Tensor>& parameters, ProcessGroup replicas);
  bool has_other_memory() const { return memory_.is_other(); }
  void take_first();  // all parameters become the first replica's. Collective: over the replicas
  void start();       // returns at once; missing gradients count as zeros
  void finish();      // Blocking: until the averages are in grad()

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
