// Copies of tensors on the host, for a save that goes on while the training does. A copy from a GPU
// does not hold up the host: it comes after the work that the tensor's stream has, and before the
// work that it gets later, such as the next step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <memory>
#include <unordered_map>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

class HostCopies {
 public:
  // Starts to copy the tensor: into `old` where that is defined and fits, since new memory costs
  // more than the copy. The copy is there after wait().
  Tensor start(const Tensor& tensor, Tensor old);

  // Blocking: until all copies that were started are there. Any thread may call it.
  void wait();

 private:
  // Behind the last copy of each GPU.
  std::unordered_map<Device, std::shared_ptr<c10::Event>> last_;
};

}  // namespace muster
