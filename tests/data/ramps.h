// Samples for tests of the memory of batches: their numbers follow from their indices.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace muster::test {

constexpr int64_t kRampSize = 1 << 15;  // 128 KiB of floats
constexpr int64_t kRamps = 50;

struct Ramp {
  torch::Tensor pixels, edges, label;
};
struct OneRamp {
  torch::Tensor pixels;
};

inline void fill_ramp(const at::Tensor& pixels, int64_t index) {
  pixels.copy_(torch::arange(pixels.numel(), torch::kFloat).view_as(pixels).add_(index * 7));
}

inline at::Tensor ramp_of(int64_t index) {
  auto pixels = torch::empty({kRampSize});
  fill_ramp(pixels, index);
  return pixels;
}

}  // namespace muster::test
