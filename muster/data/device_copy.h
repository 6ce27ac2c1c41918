// Copies batches to a device on a separate stream, so that the next batch is copied during
// computation on this one. Used by loader.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

namespace muster {

class DeviceCopy {
 public:
  // On the CPU, and on a device without streams, copies are made synchronously.
  DeviceCopy(c10::Device device, bool pin_memory);

  bool is_ahead() const { return stream_.has_value(); }

  // Starts a copy: `for_each` calls its argument with each tensor, which is replaced by its copy.
  // Use the copies after calling wait() with the result, on the stream current there.
  using ForEachTensor = std::function<void(const std::function<void(at::Tensor&)>&)>;
  using Started = std::shared_ptr<c10::Event>;
  Started start(const ForEachTensor& for_each) const;
  void wait(const Started& started, const ForEachTensor& for_each) const;

 private:
  c10::Device device_;
  bool pin_;
  std::optional<c10::Stream> stream_;  // one for all copies: the allocator keeps memory per stream
};

}  // namespace muster
