// Pictures on their way to a batch: cut, resized, mirrored, made brighter, normalised. Free functions on
// tensors [channels, height, width], uint8 or float32, on the CPU; all chance comes from a Generator. For
// get() of a data set, and ImageFolderOptions::transform:
//
//   image = transform::random_resized_crop(image, 224, 224, rng);
//   image = transform::random_flip(image, rng);
//   return transform::normalize(image, transform::kImageNetMean, transform::kImageNetDeviation);
//
// Each throws invalid_argument, saying what it expected, for another shape, type or size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "muster/data/generator.h"

namespace muster {
class EncodedImage;  // readers/encoded_image.h
}

namespace muster::transform {

inline const std::vector<double> kImageNetMean{0.485, 0.456, 0.406};
inline const std::vector<double> kImageNetDeviation{0.229, 0.224, 0.225};

// Parts: a view, nothing is copied.
at::Tensor crop(const at::Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width);
at::Tensor center_crop(const at::Tensor& image, int64_t height, int64_t width);
// The same of a picture in its file, of which only the part is decoded.
at::Tensor crop(const EncodedImage& image, int64_t top, int64_t left, int64_t height, int64_t width);
at::Tensor center_crop(const EncodedImage& image, int64_t height, int64_t width);
// Anywhere, after `padding` rows and columns of zeros on every side.
at::Tensor random_crop(const at::Tensor& image, int64_t height, int64_t width, Generator& rng,
                       int64_t padding = 0);

// Bilinear, and where it becomes smaller averaged over all pixels (antialias). Source:
// torch.nn.functional.interpolate(antialias=True), bit for bit.
at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width);
// The shorter side becomes `side`, the other in proportion. Source: torchvision.transforms.Resize(side).
at::Tensor resize_shorter(const at::Tensor& image, int64_t side);

struct ResizedCropOptions {
  std::pair<double, double> scale = {0.08, 1.0};         // of the picture's area
  std::pair<double, double> ratio = {3.0 / 4, 4.0 / 3};  // width to height
};
// A part of random size, place and shape, resized. Source: torchvision.transforms.RandomResizedCrop.
at::Tensor random_resized_crop(const at::Tensor& image, int64_t height, int64_t width, Generator& rng,
                               const ResizedCropOptions& options = {});
// The same of a picture in its file, of which only the part is decoded: pixel for pixel, from the same
// chance.
at::Tensor random_resized_crop(const EncodedImage& image, int64_t height, int64_t width, Generator& rng,
                               const ResizedCropOptions& options = {});

// Left becomes right.
at::Tensor flip(const at::Tensor& image);
at::Tensor random_flip(const at::Tensor& image, Generator& rng, double probability = 0.5);

// uint8 0..255 to float32 0..1; float32 stays.
at::Tensor to_float(const at::Tensor& image);
// (to_float(image) - mean) / deviation, one of each for a channel. Shapes: the same, float32, contiguous.
// Bit for bit what these three operations give one after the other.
at::Tensor normalize(const at::Tensor& image, const std::vector<double>& mean,
                     const std::vector<double>& deviation);

// Times `factor`; contrast: away from the mean of the picture in grey. What leaves the range (0..255, or
// 0..1) is cut. Source: torchvision.transforms.functional.adjust_brightness, adjust_contrast.
at::Tensor brightness(const at::Tensor& image, double factor);
at::Tensor contrast(const at::Tensor& image, double factor);

struct ColorJitterOptions {
  double brightness = 0;  // a factor from 1 - brightness (but not below 0) to 1 + brightness
  double contrast = 0;    // the same
};
// Both, in random order.
at::Tensor color_jitter(const at::Tensor& image, Generator& rng, const ColorJitterOptions& options);

}  // namespace muster::transform
