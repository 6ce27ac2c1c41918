// Copies batches to a device on a separate stream, so that the next batches are copied during
// computation on this one. Used by loader.h and stream_loader.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "muster/base/tensors.h"
#include "muster/data/collate.h"

namespace muster {

class DeviceCopy {
 public:
  // On the CPU, and on a device without streams, copies are made synchronously.
  DeviceCopy(c10::Device device, bool pin_memory);

  c10::Device device() const { return device_; }
  // Whether batches are to be in page-locked memory.
  bool pins() const { return pin_; }
  // Whether another batch may set out where `coming` have, beside the one computed on.
  bool has_room_after(size_t coming) const { return stream_ && coming < kMostComing; }
  // The one that this thread computes on; none on a device without streams.
  std::optional<c10::Stream> current_stream() const;

  // Calls its argument with each tensor of a batch, to be replaced or used.
  using ForEachTensor = std::function<void(const std::function<void(Tensor&)>&)>;
  // Moves what is not in page-locked memory there, if batches are to be. For the thread that made
  // the batch: it costs a copy.
  void pin(const ForEachTensor& for_each) const;

  // Starts a copy: each tensor is replaced by its copy. Never waits for the device where the batch
  // is pinned. Use the copies after calling wait() with the result, on the stream current there.
  using Started = std::shared_ptr<c10::Event>;
  Started start(const ForEachTensor& for_each) const;
  void wait(const Started& started, const ForEachTensor& for_each) const;

 private:
  static constexpr size_t kMostComing = 2;

  c10::Device device_;
  bool pin_;
  std::optional<c10::Stream> stream_;  // one for all copies: the allocator keeps memory per stream
};

// What a thread makes batches under, while it lives: on their device, collating into page-locked
// memory if they are to be there, and without gradients.
class MakingBatch {
 public:
  // `stream`: the loop's, for examples that are computed on a GPU; none: this thread's own.
  MakingBatch(const DeviceCopy& copy, const std::optional<c10::Stream>& stream);

 private:
  const c10::OptionalDeviceGuard device_;
  const c10::OptionalStreamGuard stream_;
  const PinnedCollation pinned_;
  const c10::AutoGradMode no_gradients_{false};
};

}  // namespace muster
