// Images turned, moved, scaled and sheared. Free functions with torchvision's names
// (transforms.v2.functional), and its numbers.
//
// Each takes one image or a batch, on any device: Shapes: [channels, height, width] or
// [B, channels, height, width], uint8 or float32; the result alike. An image's result does not
// depend on the others of its batch. Throws: invalid_argument, with the expected value, for another
// shape, type or number.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "muster/data/generators.h"
#include "muster/data/interpolation.h"

namespace muster::transform {

struct AffineOptions {
  Interpolation interpolation = Interpolation::nearest;
  // The value of places outside of the image, or one a channel. Empty: 0, and bilinear blends the
  // image's edge with it once, not twice as torchvision does for {0}.
  std::vector<double> fill{};
  std::optional<std::pair<double, double>> center{};  // x and y in pixels; unset: the middle
};

// In degrees, clockwise; `translate` x and y in pixels; `shear` x and y in degrees.
at::Tensor affine(const at::Tensor& images,
                  double angle,
                  std::pair<double, double> translate,
                  double scale,
                  std::pair<double, double> shear,
                  const AffineOptions& options = {});

// In degrees, counterclockwise. A turn by a multiple of 90 about the middle is exact where the
// result has the image's shape.
at::Tensor rotate(const at::Tensor& images, double angle, const AffineOptions& options = {});

struct RandomRotationOptions {
  std::pair<double, double> degrees = {0, 0};  // from, to
  Interpolation interpolation = Interpolation::nearest;
  std::vector<double> fill = {0};
  std::optional<std::pair<double, double>> center{};
};
// With one generator a batch's images all turn alike; with one for each image, each as it would
// alone. Source: torchvision.transforms.v2.RandomRotation.
at::Tensor random_rotation(const at::Tensor& images,
                           RandomSource rng,
                           const RandomRotationOptions& options);

struct RandomAffineOptions {
  std::pair<double, double> degrees = {0, 0};
  std::pair<double, double> translate = {0, 0};  // at most this part of width and height
  std::pair<double, double> scale = {1, 1};
  std::pair<double, double> shear_x = {0, 0};  // in degrees
  std::pair<double, double> shear_y = {0, 0};
  Interpolation interpolation = Interpolation::nearest;
  std::vector<double> fill = {0};
  std::optional<std::pair<double, double>> center{};
};
// Source: torchvision.transforms.v2.RandomAffine.
at::Tensor random_affine(const at::Tensor& images,
                         RandomSource rng,
                         const RandomAffineOptions& options);

}  // namespace muster::transform
