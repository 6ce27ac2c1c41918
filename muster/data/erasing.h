// Rectangles of images erased, with torchvision's names (transforms.v2) and numbers.
//
// Each takes one image or a batch, on any device: Shapes: [channels, height, width] or
// [B, channels, height, width], uint8 or float32; the result alike. Throws: invalid_argument, with
// the expected value, for another shape, type or number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "muster/data/generators.h"

namespace muster::transform {

// A copy with `value` in the rectangle: one value, or one a channel.
at::Tensor erase(const at::Tensor& images,
                 int64_t top,
                 int64_t left,
                 int64_t height,
                 int64_t width,
                 const std::vector<double>& value = {0});

struct RandomErasingOptions {
  double probability = 0.5;
  std::pair<double, double> scale = {0.02, 0.33};  // of the image's area
  std::pair<double, double> ratio = {0.3, 3.3};    // height to width
  std::vector<double> value = {0};                 // one, or one a channel
  bool noise = false;                              // instead of `value`: normal noise, for float32
};
// Erases a rectangle of random area and shape at a random place. With one generator it is the same
// of all images of a batch; with one for each image, each has its own, as it would alone. Source:
// torchvision.transforms.v2.RandomErasing.
at::Tensor random_erasing(const at::Tensor& images,
                          Generator& rng,
                          const RandomErasingOptions& options = {});
at::Tensor random_erasing(const at::Tensor& images,
                          Generators& rngs,
                          const RandomErasingOptions& options = {});

}  // namespace muster::transform
