// An optimizer whose step the device itself can leave out, so that the host need not wait to know
// whether the gradients are finite, and which a CUDA graph can take. TrainStep (train/step.h) and
// GraphedStep (train/graphed_step.h) use it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "muster/base/tensors.h"

namespace muster::optim {

struct GraphNumbers;

class DeviceStep {
 public:
  DeviceStep() = default;
  DeviceStep(DeviceStep&&) = default;
  virtual ~DeviceStep() = default;

  // Whether step_unless() can be called now. It cannot for gradients that one kernel does not take
  // (sparse, complex, on the CPU or on several devices), nor for SGD's first step with dampening.
  virtual bool can_leave_out() = 0;

  // A step that changes nothing if `found`, a float scalar on the parameters' device, is 1; if it
  // is 0, the step is taken. The counts of steps in the state go on in both cases.
  virtual void step_unless(const Tensor& found) = 0;

  // Says that the device has left out the last `steps` steps, so that the counts go back.
  virtual void take_back(int64_t steps) = 0;

  // From now on all steps round the rates to float32, as those of a CUDA graph do.
  virtual void round_rates() = 0;

  // Before a capture: the memory in which its kernels find rates and counts. It lives as long as
  // the graph.
  virtual std::shared_ptr<GraphNumbers> numbers_for_graph() = 0;

  // Within a capture: the kernels of a step. The state counts nothing. Throws: failed_precondition
  // for a parameter that has not taken a step before.
  virtual void capture(GraphNumbers& numbers, const std::optional<Tensor>& found) = 0;

  // Before a replay: the state counts the step, and the graph gets the rates and counts of now.
  virtual void before_replay(GraphNumbers& numbers) = 0;

  // What a capture depends on and before_replay() does not write: where the state lies, and the
  // options but for the rates. Another answer means that a graph steps on other memory, or by other
  // options.
  virtual void describe(std::vector<uint64_t>& into) = 0;

  // The tensors of the state.
  virtual Tensors state_tensors() = 0;
};

}  // namespace muster::optim
