// The copy goes to pinned memory on the current stream, and an event behind it says when it is
// over.
#include "muster/train/late_read.h"

#include <ATen/Functions.h>

#include "muster/base/torch_names.h"
#include "muster/comm/call/stream_order.h"

namespace muster {

void LateRead::start(const Tensor& values) {
  if (!on_host_.defined() || on_host_.sizes() != values.sizes())
    on_host_ = at::empty(values.sizes(), at::TensorOptions(kFloat).pinned_memory(true));
  on_host_.copy_(values, /*non_blocking=*/true);
  done_.emplace(values.device().type());
  done_->record(current_stream_of(values.device()));
}

std::optional<std::vector<float>> LateRead::take_if_ready() {
  if (!done_ || !done_->query())
    return std::nullopt;
  return take();
}

std::vector<float> LateRead::wait() {
  done_->synchronize();
  return take();
}

std::vector<float> LateRead::take() {
  done_.reset();
  const auto* const first = on_host_.const_data_ptr<float>();
  return {first, first + on_host_.numel()};
}

}  // namespace muster
