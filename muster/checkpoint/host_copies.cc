// A copy from a GPU runs beside the host only into page-locked memory. An event behind it on the
// current stream says when it is there.
#include "muster/checkpoint/host_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "muster/comm/call/stream_order.h"

namespace muster {

namespace {

bool fits(const Tensor& old, const Tensor& tensor) {
  if (!old.defined() || old.sizes() != tensor.sizes())
    return false;
  const bool lies_right = !tensor.is_cuda() || old.is_pinned();
  return lies_right && old.scalar_type() == tensor.scalar_type();
}

Tensor room_on_host(const Tensor& tensor) {
  const auto options = at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.is_cuda());
  return at::empty(tensor.sizes(), options);
}

}  // namespace

// The optimizer may have more state than at the last copy, as after its first step.
Tensor HostCopies::start(const Tensor& tensor, Tensor old) {
  Tensor copy = fits(old, tensor) ? std::move(old) : room_on_host(tensor);
  copy.copy_(tensor, /*non_blocking=*/tensor.is_cuda());
  if (!tensor.is_cuda())
    return copy;
  std::shared_ptr<c10::Event>& last = last_[tensor.device()];
  if (!last)
    last = std::make_shared<c10::Event>(tensor.device().type());
  last->record(current_stream_of(tensor.device()));
  return copy;
}

// LibTorch goes back to the thread's own GPU when it lets an event go, and CUDA makes a context
// there: a thread of a save would take memory of GPU 0 on every rank.
void HostCopies::wait() {
  for (auto& [device, last] : last_) {
    const c10::DeviceGuard there(device);
    last->synchronize();
    last.reset();
  }
  last_.clear();
}

}  // namespace muster
