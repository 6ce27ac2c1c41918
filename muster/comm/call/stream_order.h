// The order of a GPU's streams: one waits for what another was given, and the host waits only in
// wait_for_device().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <optional>

#include "muster/base/log.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

inline c10::Stream current_stream_of(Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Blocking: until a GPU has done all that it was given.
inline void wait_for_device(Device device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

inline void let_wait(const c10::Stream& stream, const c10::Stream& for_what) {
  c10::Event reached(for_what.device_type());
  reached.record(for_what);
  reached.block(stream);
}

// The allocator hears that the stream uses a tensor, which may have been made on another.
inline void record_on(const Tensor& tensor, const c10::Stream& stream) {
  if (tensor.defined() && tensor.device() == stream.device() && tensor.numel() > 0)
    tensor.record_stream(stream);
}

// The same, for the stream that is current now: tensors that a hook of autograd has made may be of
// another one.
inline void use_on_this_stream(const Tensors& tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.is_cpu())
      record_on(tensor, current_stream_of(tensor.device()));
  }
}

// Makes a stream the current one while it lives. That one waits for what the caller's was given
// before, and the caller's waits for it in the end, also where something is thrown meanwhile.
// Nothing where the two are one, or for no stream.
class OnStream : NoCopy {
 public:
  explicit OnStream(const std::optional<c10::Stream>& stream) {
    if (!stream || current_stream_of(stream->device()) == *stream)
      return;
    callers_ = current_stream_of(stream->device());
    let_wait(*stream, *callers_);
    guard_.emplace(*stream);
  }
  ~OnStream() {
    if (!guard_)
      return;
    try {
      let_wait(*callers_, guard_->current_stream());
    } catch (const std::exception& error) {
      log_debug("a stream of a GPU was not waited for: ", error.what());
    }
  }

  // The caller's stream uses the tensor later.
  void give(const Tensor& tensor) const {
    if (callers_)
      record_on(tensor, *callers_);
  }

 private:
  std::optional<c10::Stream> callers_;
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace muster
