// Whether ranks train on the same samples, by samples of the gradients that they are about to
// reduce: the ranks exchange them in the first reductions. On CPUs only, since a sample waits for
// its device. Used by ScatteredGradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/same_samples.h"

namespace muster {

class SampledGradients {
 public:
  explicit SampledGradients(ProcessGroup group) : group_(std::move(group)) {}

  // Collective: yes, in the first reductions. Blocking: no.
  void start(const Tensor& gradient);
  // Returns two ranks of one gradient, once. Throws: as Work::wait.
  std::optional<Twins> finish();
  void drop();

 private:
  ProcessGroup group_;
  SameSamples same_samples_;
  int started_ = 0;  // it counts alike on all ranks, also where a backward fails
  Tensor all_;
  std::optional<Work> work_;
};

// Says of one model that ranks train on the same samples: once, and on the first rank.
class SameSamplesWarning {
 public:
  explicit SameSamplesWarning(const char* subject) : subject_(subject) {}
  void say(const std::optional<Twins>& twins, const ProcessGroup& group);

 private:
  const char* subject_;
  bool said_ = false;
};

}  // namespace muster
