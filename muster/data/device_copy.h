// Copies of batches to a device on a stream of their own, so that the next batch travels while this one is
// computed on. Used by loader.h.
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
  // On the CPU, and on a device without streams of its own, copies are made when they are asked for.
  DeviceCopy(c10::Device device, bool pin_memory);

  bool is_ahead() const { return stream_.has_value(); }

  // Starts: `for_each` calls what it is given with each tensor, which is replaced by its copy. The copies may
  // be used after wait() with what this returns, on the stream that is current there.
  using ForEachTensor = std::function<void(const std::function<void(at::Tensor&)>&)>;
  using Started = std::shared_ptr<c10::Event>;
  Started start(const ForEachTensor& for_each) const;
  void wait(const Started& started, const ForEachTensor& for_each) const;

 private:
  c10::Device device_;
  bool pin_;
  std::optional<c10::Stream> stream_;  // one for all copies: the allocator keeps memory for each stream
};

}  // namespace muster
