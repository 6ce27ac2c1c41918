// Image transforms for training data: crop, resize, flip, normalise (color.h, affine.h, blur.h,
// erasing.h and auto_augment.h have the others). Free functions on tensors [channels, height,
// width], uint8 or float32, on the CPU; all randomness comes from a Generator. For a dataset's
// get(), and for ImageFolderOptions::transform:
//
//   image = transform::random_resized_crop(image, 224, 224, rng);
//   image = transform::random_flip(image, rng);
//   return transform::normalize(image, transform::kImageNetMean, transform::kImageNetDeviation);
//
// A mask is cut and flipped as its picture with a copy of the generator, which draws the same:
//
//   Generator same = rng;
//   image = transform::random_resized_crop(image, 224, 224, rng);
//   mask = transform::random_resized_crop(
//       mask, 224, 224, same, {.interpolation = transform::Interpolation::nearest});
//
// Each throws invalid_argument, with the expected value, for another shape, type or size.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/data/generator.h"
#include "muster/data/generators.h"
#include "muster/data/interpolation.h"

namespace muster {
class EncodedImage;  // readers/encoded_image.h
}

namespace muster::transform {

inline const std::vector<double> kImageNetMean{0.485, 0.456, 0.406};
inline const std::vector<double> kImageNetDeviation{0.229, 0.224, 0.225};

// Crops the image: returns a view, without copying.
at::Tensor crop(const at::Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width);
at::Tensor center_crop(const at::Tensor& image, int64_t height, int64_t width);
// The same for an encoded image, of which only the crop is decoded.
at::Tensor crop(
    const EncodedImage& image, int64_t top, int64_t left, int64_t height, int64_t width);
at::Tensor center_crop(const EncodedImage& image, int64_t height, int64_t width);
// Crops at a random position, after adding `padding` rows and columns of zeros on every side.
at::Tensor random_crop(
    const at::Tensor& image, int64_t height, int64_t width, Generator& rng, int64_t padding = 0);
// Of each image of a batch [B, channels, height, width] on any device, as it would alone.
at::Tensor random_crop(
    const at::Tensor& images, int64_t height, int64_t width, Generators& rngs, int64_t padding = 0);

// Bilinear is antialiased when it shrinks. Source: torch.nn.functional.interpolate(antialias=True),
// or of nearest (mode="nearest"), bit for bit.
at::Tensor resize(const at::Tensor& image,
                  int64_t height,
                  int64_t width,
                  Interpolation interpolation = Interpolation::bilinear);
// Resizes the shorter side to `side`, the other in proportion. Source:
// torchvision.transforms.Resize(side).
at::Tensor resize_shorter(const at::Tensor& image,
                          int64_t side,
                          Interpolation interpolation = Interpolation::bilinear);

struct ResizedCropOptions {
  std::pair<double, double> scale = {0.08, 1.0};         // of the image's area
  std::pair<double, double> ratio = {3.0 / 4, 4.0 / 3};  // width to height
  Interpolation interpolation = Interpolation::bilinear;
};
// Crops at random size, position and shape, then resizes. Source:
// torchvision.transforms.RandomResizedCrop.
at::Tensor random_resized_crop(const at::Tensor& image,
                               int64_t height,
                               int64_t width,
                               Generator& rng,
                               const ResizedCropOptions& options = {});
// Of each image of a batch [B, channels, height, width] on any device. On the CPU each becomes bit
// for bit what it would alone; on a GPU bytes may differ by one.
at::Tensor random_resized_crop(const at::Tensor& images,
                               int64_t height,
                               int64_t width,
                               Generators& rngs,
                               const ResizedCropOptions& options = {});
// The same for an encoded image, of which only the crop is decoded: the same pixels from the same
// random numbers.
at::Tensor random_resized_crop(const EncodedImage& image,
                               int64_t height,
                               int64_t width,
                               Generator& rng,
                               const ResizedCropOptions& options = {});

// Mirrors left and right.
at::Tensor flip(const at::Tensor& image);
at::Tensor random_flip(const at::Tensor& image, Generator& rng, double probability = 0.5);
// Of each image of a batch [B, channels, height, width] on any device, as it would alone.
at::Tensor random_flip(const at::Tensor& images, Generators& rngs, double probability = 0.5);

// uint8 0..255 to float32 0..1; float32 is unchanged.
at::Tensor to_float(const at::Tensor& image);
// (to_float(image) - mean) / deviation, with one value per channel; bit for bit as these three
// operations one after another. Shapes: the same, float32, contiguous.
at::Tensor normalize(const at::Tensor& image,
                     const std::vector<double>& mean,
                     const std::vector<double>& deviation);

// The same for a batch where it is: uint8 crosses the bus to a GPU in a quarter of the time of
// float32, and the workers are spared the arithmetic. The data set leaves its images uint8, and the
// training loop has
//
//   transform::NormalizeOnDevice normalize(transform::kImageNetMean,
//                                          transform::kImageNetDeviation);
//   for (const auto& batch : loader.steps(1000)) … net->forward(normalize(batch.image)) …
class NormalizeOnDevice {
 public:
  // One value per channel. Throws: invalid_argument for different numbers of them, and deviations
  // that are not above 0.
  NormalizeOnDevice(std::vector<double> mean, std::vector<double> deviation);

  // Shapes: images [B, channels, height, width] uint8 or float32; the same, float32, on the images'
  // device, bit for bit what normalize() gives for each. Does not wait for the device. All calls
  // must be on one stream. Throws: invalid_argument for another shape or type.
  at::Tensor operator()(const at::Tensor& images);

 private:
  void move_to(c10::Device device);

  Doubles means_;
  Doubles deviations_;
  // On the device of the last images: [], [channels, 1, 1] and [channels, 1, 1].
  Tensor largest_byte_, mean_, deviation_;
};

}  // namespace muster::transform
