// What transforms do to pixels, with a number for each image. For the transforms' own sources,
// which have checked their arguments. Shapes: images [N, channels, height, width] uint8 or float32,
// on the CPU with N = 1; the results alike, on the images' device, without waiting for it.
//
// Source, of all: torchvision.transforms.v2.functional on tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/data/affine.h"
#include "muster/data/each_image.h"

namespace muster::transform::kernel {

Tensor brightness(const Tensor& images, const Numbers& factors);
Tensor contrast(const Tensor& images, const Numbers& factors);
Tensor saturation(const Tensor& images, const Numbers& factors);
Tensor hue(const Tensor& images, const Numbers& shifts);
Tensor sharpness(const Tensor& images, const Numbers& factors);
Tensor posterize(const Tensor& images, const Numbers& bits);
Tensor solarize(const Tensor& images, const Numbers& thresholds);
Tensor autocontrast(const Tensor& images);
Tensor equalize(const Tensor& images);
Tensor invert(const Tensor& images);
// [N, 1, height, width] float32, which are whole numbers if the images are bytes.
Tensor grey(const Tensor& images);

// Kernels of `width` and `height`, both odd.
Tensor gaussian_blur(const Tensor& images,
                     int64_t width,
                     int64_t height,
                     const Numbers& sigmas_x,
                     const Numbers& sigmas_y);

// From a place in the result, measured from the middle, to one in the image: rows (a, b, c) and
// (d, e, f) say x = a x' + b y' + c, y = d x' + e y' + f.
using Matrix = std::array<double, 6>;
using Matrices = std::vector<Matrix>;

struct AffineMap {
  double angle = 0;  // in degrees, clockwise
  std::array<double, 2> translate = {0, 0};
  double scale = 1;
  std::array<double, 2> shear = {0, 0};   // in degrees
  std::array<double, 2> center = {0, 0};  // from the middle
};
Matrix inverse_of(const AffineMap& map);
Tensor affine(const Tensor& images, const Matrices& matrices, const AffineOptions& options);
// Counterclockwise, in degrees, about the middle; multiples of 90 exactly.
Tensor rotate(const Tensor& images, const Numbers& angles, const AffineOptions& options);

}  // namespace muster::transform::kernel
