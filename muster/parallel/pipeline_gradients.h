// What becomes of a pipeline's gradients after backward: averaged over replicas, summed over the ranks that
// hold a tied weight. Used by pipeline.cc alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

// One stage's gradients, in one message a type of tensor.
class StageAverage {
 public:
  StageAverage(std::vector<at::Tensor> parameters, ProcessGroup replicas);
  void start();   // returns at once; parameters without a gradient count as zeros
  void finish();  // Blocking: until the averages are in grad()

 private:
  struct Bucket {
    std::vector<at::Tensor> parameters;
    at::Tensor flat = {};
    std::optional<Work> work = {};
  };
  ProcessGroup replicas_;
  std::vector<Bucket> buckets_;
};

// A weight that some ranks of a group have in common.
class TiedWeight {
 public:
  // As Pipeline::tie. `name` is what this rank's stage calls it; empty where it is none of its parameters.
  TiedWeight(at::Tensor parameter, const std::string& name, ProcessGroup& group);
  void begin_step();     // keeps what other steps have left in grad() apart
  void sum_gradients();  // of this step, and adds them to what was there. Collective: over its ranks
  const at::Tensor& parameter() const { return parameter_; }
  bool is_copy() const { return holders_ && holders_->rank() > 0; }  // another rank's counts
  // What its ranks call it, the first rank's first: the name that it has in checkpoints.
  const std::vector<std::string>& names() const { return names_; }

 private:
  at::Tensor parameter_;
  std::vector<std::string> names_;  // each once
  at::Tensor before_;
  std::optional<ProcessGroup> holders_;
};

}  // namespace muster
