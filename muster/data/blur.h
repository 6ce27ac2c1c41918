// Images blurred, with torchvision's names (transforms.v2) and numbers.
//
// Each takes one image or a batch, on any device: Shapes: [channels, height, width] or
// [B, channels, height, width], uint8 or float32; the result alike. An image's result does not
// depend on the others of its batch. Throws: invalid_argument, with the expected value, for another
// shape, type or number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "muster/data/generators.h"

namespace muster::transform {

// A kernel of `width` × `height` pixels, both odd, with the deviations `sigma` (x, y) above 0. The
// image is mirrored beyond its edge, so it needs more pixels than half of the kernel. Source:
// torchvision.transforms.v2.functional.gaussian_blur.
at::Tensor gaussian_blur(const at::Tensor& images,
                         std::pair<int64_t, int64_t> kernel,
                         std::pair<double, double> sigma);

struct GaussianBlurOptions {
  std::pair<int64_t, int64_t> kernel = {3, 3};   // width and height, both odd
  std::pair<double, double> sigma = {0.1, 2.0};  // the least and the most, of both directions
};
// With one generator a batch's images are all blurred alike; with one for each image, each as it
// would be alone. Source: torchvision.transforms.v2.GaussianBlur.
at::Tensor random_gaussian_blur(const at::Tensor& images,
                                RandomSource rng,
                                const GaussianBlurOptions& options = {});

}  // namespace muster::transform
