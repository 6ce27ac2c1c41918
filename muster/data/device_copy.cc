// Copies a batch to a GPU on a stream of its own, while a batch before it is computed on. start()
// records an event behind the copies; wait() makes the current stream wait for it, without holding
// up the host. What is slow, page-locking, is for the workers (pin()), which leaves start() but the
// calls that queue the copies.
#include "muster/data/device_copy.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "muster/base/torch_names.h"

namespace muster {

DeviceCopy::DeviceCopy(Device device, bool pin_memory)
    : device_(device), pin_(pin_memory && device.is_cuda()) {
  if (!device.is_cuda())
    return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

std::optional<c10::Stream> DeviceCopy::current_stream() const {
  if (!stream_)
    return {};
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

// A copy runs beside the host only out of page-locked memory.
void DeviceCopy::pin(const ForEachTensor& for_each) const {
  if (!pin_)
    return;
  for_each([](Tensor& tensor) {
    if (tensor.is_cpu() && !tensor.is_pinned())
      tensor = tensor.pin_memory();
  });
}

// The result is null where there is nothing to wait for: on the CPU, where the tensors stay as they
// are, and on devices without a stream of their own.
DeviceCopy::Started DeviceCopy::start(const ForEachTensor& for_each) const {
  if (device_.is_cpu())
    return nullptr;
  std::optional<c10::StreamGuard> guard;
  if (stream_)
    guard.emplace(*stream_);
  for_each([&](Tensor& tensor) { tensor = tensor.to(device_, /*non_blocking=*/pin_); });
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
  const c10::Stream current = *current_stream();
  started->block(current);
  for_each([&](Tensor& tensor) { tensor.record_stream(current); });
}

// The stream's guard also puts back the one that the thread had.
MakingBatch::MakingBatch(const DeviceCopy& copy, const std::optional<c10::Stream>& stream)
    : device_(copy.device().is_cpu() ? std::optional<Device>() : copy.device()),
      stream_(stream),
      pinned_(copy.pins()) {}

}  // namespace muster
