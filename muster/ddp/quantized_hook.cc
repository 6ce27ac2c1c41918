// Sends 8 bits for each number of a gradient, and a scale and a zero point for each block of
// numbers. Every rank gathers all ranks' bytes and adds up the numbers that they stand for. Source:
// torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks and torch.ao.quantization's
// MinMaxObserver, in the same arithmetic.
#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/hooks.h"

namespace muster {

namespace {

constexpr double kLargest = 255;  // of the numbers that a byte stands for

// A row for each block: its scale and zero point, chosen so that 0 stays 0.
Tensor scales_and_zeros(const Tensor& blocks) {
  const auto [least, most] = at::aminmax(blocks, 1);
  const Tensor below = at::clamp_max(least, 0), above = at::clamp_min(most, 0);
  constexpr float kLeastScale = std::numeric_limits<float>::epsilon();
  const Tensor scale = at::clamp_min((above - below) / kLargest, kLeastScale);
  const Tensor zero = at::clamp(-at::round(below / scale), 0, kLargest);
  return at::stack({scale, zero}, 1).to(kFloat);
}

// A row for each block; the last one is padded with zeros.
Tensor padded_to_blocks(const Tensor& tensor, int64_t block) {
  const int64_t size = block == 0 ? std::max<int64_t>(tensor.numel(), 1) : block;
  const int64_t missing = (size - tensor.numel() % size) % size;
  return (missing == 0 ? tensor : at::constant_pad_nd(tensor, {0, missing})).view({-1, size});
}

class QuantizedHook : public CommunicationHook {
 public:
  explicit QuantizedHook(const QuantizedOptions& options) : options_(options) {}
  std::string name() const override { return cat("quantized_8bit(block ", options_.block, ")"); }
  Reduction reduce(GradientBucket bucket) override;

 private:
  // A rank's rows of what was gathered.
  static Tensor gathered(ProcessGroup& group, const Tensor& all, int rank) {
    const int64_t rows = all.size(0) / group.size();
    return all.slice(0, rank * rows, (rank + 1) * rows);
  }
  Tensor room_for_all(const ProcessGroup& group, const Tensor& mine) {
    count_sent(mine);
    auto sizes = mine.sizes().vec();
    sizes[0] *= group.size();
    return at::empty(sizes, mine.options());
  }

  const QuantizedOptions options_;
};

// Bytes and scales are sent at once: a rank's own scales tell what its bytes mean.
Reduction QuantizedHook::reduce(GradientBucket bucket) {
  ProcessGroup group = bucket.group;
  const Tensor blocks = padded_to_blocks(bucket.tensor, options_.block).to(kFloat);
  const Tensor scales = scales_and_zeros(blocks);
  const Tensor scale = scales.select(1, 0).unsqueeze(1);
  const Tensor zero = scales.select(1, 1).unsqueeze(1);
  const Tensor bytes = at::clamp(at::round(blocks / scale) + zero, 0, kLargest).to(kByte);
  const Tensor all_scales = room_for_all(group, scales), all_bytes = room_for_all(group, bytes);
  Work scales_work = group.all_gather_async(all_scales, scales);
  Work bytes_work = group.all_gather_async(all_bytes, bytes);
  return [=, tensor = bucket.tensor]() mutable {
    scales_work.wait();
    bytes_work.wait();
    Tensor sum = at::zeros_like(blocks);
    for (const int rank : indices_below(group.size())) {
      const Tensor of_rank = gathered(group, all_scales, rank);
      sum += of_rank.select(1, 0).unsqueeze(1) *
             (gathered(group, all_bytes, rank).to(kFloat) - of_rank.select(1, 1).unsqueeze(1));
    }
    return tensor.copy_(sum.view(-1).slice(0, 0, tensor.numel()) / group.size());
  };
}

}  // namespace

// A block of 0 stands for the whole bucket, as in Python's hook for whole tensors.
Hook quantized_8bit(const QuantizedOptions& options) {
  if (options.block < 0) {
    throw invalid_argument(
        "quantized_8bit: expected a block of 1 or more, or 0 for whole buckets, got ",
        options.block,
        "; 512 is the default");
  }
  return {std::make_shared<QuantizedHook>(options)};
}

}  // namespace muster
