// An optimizer whose step the device itself can leave out, so that the host need not wait to know
// whether the gradients are finite. TrainStep (train/step.h) uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace muster::optim {

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
  virtual void step_unless(const at::Tensor& found) = 0;

  // Says that the device has left out the last `steps` steps, so that the counts go back.
  virtual void take_back(int64_t steps) = 0;
};

}  // namespace muster::optim
