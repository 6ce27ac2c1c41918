// One buffer is filled while another is being reduced, so two are kept, of the largest that were
// asked for. Any more are made for the occasion.
#include "muster/parallel/sharded/gradient_buffers.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "muster/base/lock.h"
#include "muster/comm/shared_tensor.h"

namespace muster {

namespace {

constexpr size_t kKept = 2;

bool is_free(const Tensor& kept) {
  return kept.storage().use_count() == 1;
}

}  // namespace

Tensor GradientBuffers::take(int64_t length, const at::TensorOptions& options) {
  if (!has_shared_memory(group_, options))
    return at::empty({length}, options);
  const Lock lock(mutex_);
  const auto fits = [&](const Tensor& kept) {
    return is_free(kept) && kept.dtype() == options.dtype() && kept.numel() >= length;
  };
  const auto found = std::ranges::find_if(kept_, fits);
  if (found != kept_.end())
    return found->narrow(0, 0, length);
  if (kept_.size() == kKept)
    std::erase_if(kept_, is_free);
  if (kept_.size() == kKept)
    return at::empty({length}, options);
  kept_.push_back(empty_shared(group_, length, options));
  return kept_.back().narrow(0, 0, length);
}

}  // namespace muster
