// Copies a batch to a GPU on a stream of its own, while the previous batch is computed on. start()
// records an event behind the copies; wait() makes the current stream wait for it, without holding
// up the host.
#include "muster/data/device_copy.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace muster {

DeviceCopy::DeviceCopy(c10::Device device, bool pin_memory)
    : device_(device), pin_(pin_memory && device.is_cuda()) {
  if (!device.is_cuda())
    return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

// The result is null where there is nothing to wait for: on the CPU, where the tensors stay as they
// are, and on devices without a stream of their own.
DeviceCopy::Started DeviceCopy::start(const ForEachTensor& for_each) const {
  if (device_.is_cpu())
    return nullptr;
  std::optional<c10::StreamGuard> guard;
  if (stream_)
    guard.emplace(*stream_);
  for_each([&](at::Tensor& tensor) {
    // A copy runs beside the host only out of page-locked memory.
    if (pin_ && tensor.is_cpu() && !tensor.is_pinned())
      tensor = tensor.pin_memory();
    tensor = tensor.to(device_, /*non_blocking=*/pin_);
  });
  if (!stream_)
    return nullptr;
  auto done = std::make_shared<c10::Event>(device_.type());
  done->record(*stream_);
  return done;
}

// The allocator is told who reads the copies, or it would give their memory to the next copy too
// early.
void DeviceCopy::wait(const Started& started, const ForEachTensor& for_each) const {
  if (!started)
    return;
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  started->block(current);
  for_each([&](at::Tensor& tensor) { tensor.record_stream(current); });
}

}  // namespace muster
