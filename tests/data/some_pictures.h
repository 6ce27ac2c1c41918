// Pictures for tests of transforms, computed from their places, here and in Python
// (torchvision_numbers.py).
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

namespace muster::test {

// `kind`: rgb, grey (one channel), or flat (one channel is even, and the others have few values).
// Shapes: [channels, height, width] uint8.
inline at::Tensor some_bytes(const std::string& kind, int64_t height, int64_t width) {
  const auto y = torch::arange(height).view({1, -1, 1});
  const auto x = torch::arange(width).view({1, 1, -1});
  const auto c = torch::arange(kind == "grey" ? 1 : 3).view({-1, 1, 1});
  auto values = (y * y * 7 + x * 13 + c * 50 + x * y * (c + 1)) % 256;
  if (kind == "flat")
    values = torch::where(c == 1, 90, values.floor_divide(80) * 30 + 40);
  return values.to(torch::kByte);
}

// As decoders give them: a pixel's values beside each other.
inline at::Tensor interleaved(const at::Tensor& image) {
  return image.permute({1, 2, 0}).contiguous().permute({2, 0, 1});
}

}  // namespace muster::test
