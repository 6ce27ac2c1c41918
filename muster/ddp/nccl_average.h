// How gradients are averaged on GPUs: one all_reduce of each bucket, in which NCCL divides, instead
// of a kernel that divides each gradient.
#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "muster/comm/process_group.h"
#include "muster/ddp/trained_parameters.h"

namespace muster {

// By how many ranks gradients are divided; 0: by all of them. Inside of join() it changes from step
// to step, and is never 0.
using AverageDivisor = std::shared_ptr<std::atomic<int>>;

// Whether the hook gives the bits of PyTorch's way: there a gradient is divided before it is added
// to the others'. NCCL may multiply and add at once, which is the same if the number of ranks is a
// power of two: then dividing does not round.
bool averages_in_nccl(const ProcessGroup& group, const TrainedParameters& parameters);

class NcclAverage : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  NcclAverage(const c10::intrusive_ptr<c10d::ProcessGroup>& group, AverageDivisor divisor);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

 private:
  AverageDivisor divisor_;
};

}  // namespace muster
