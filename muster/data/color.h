// Colours of images: brightness, contrast, saturation, hue, and what RandAugment does to them. Free
// functions with torchvision's names (transforms.v2.functional), and its numbers.
//
// Each takes one image or a batch, on any device: Shapes: [channels, height, width] or
// [B, channels, height, width], uint8 from 0 to 255 or float32 from 0 to 1, with 1 or 3 channels;
// the result alike. An image's result does not depend on the others of its batch. Throws:
// invalid_argument, with the expected value, for another shape, type or number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "muster/data/generators.h"

namespace muster::transform {

// 0 makes black, 1 changes nothing.
at::Tensor adjust_brightness(const at::Tensor& images, double factor);
// 0 makes an even grey of the image's mean.
at::Tensor adjust_contrast(const at::Tensor& images, double factor);
// 0 makes grey. Images of 1 channel stay.
at::Tensor adjust_saturation(const at::Tensor& images, double factor);
// From -0.5 to 0.5, both of which are the opposite colours. Images of 1 channel stay.
at::Tensor adjust_hue(const at::Tensor& images, double shift);
// 0 makes them smooth, 2 doubles their sharpness.
at::Tensor adjust_sharpness(const at::Tensor& images, double factor);

// `channels` 1 or 3, all alike.
at::Tensor rgb_to_grayscale(const at::Tensor& images, int64_t channels = 1);
at::Tensor invert(const at::Tensor& images);
// Keeps the upper 0 to 8 bits.
at::Tensor posterize(const at::Tensor& images, int64_t bits);
// Inverts what is not below the threshold, which is at most 255, or 1 for float32.
at::Tensor solarize(const at::Tensor& images, double threshold);
// Spreads each channel to all of the range.
at::Tensor autocontrast(const at::Tensor& images);
// Gives each channel an even histogram of 256 values.
at::Tensor equalize(const at::Tensor& images);

// How far a factor may be from the one that changes nothing, or its least and most:
// `.brightness = 0.4`, `.brightness = {0.8, 1.2}`.
class JitterRange {
 public:
  JitterRange(double around = 0) : around_(around) {}  // NOLINT(google-explicit-constructor)
  JitterRange(double least, double most) : given_({least, most}) {}
  // Around `center`, from `least` on. Nothing where nothing is to change. Throws: invalid_argument
  // for a range that does not lie within `least` and `most`.
  std::optional<std::pair<double, double>> range(const char* name,
                                                 double center,
                                                 double least,
                                                 double most) const;

 private:
  double around_ = 0;
  std::optional<std::pair<double, double>> given_;
};

struct ColorJitterOptions {
  JitterRange brightness{};  // x: a factor from 1 - x (at least 0) to 1 + x
  JitterRange contrast{};    // the same
  JitterRange saturation{};  // the same
  JitterRange hue{};         // x: a shift from -x to x; at most 0.5
};
// All four in random order. With one generator a batch's images all change alike; with one for each
// image, each as it would alone. Source: torchvision.transforms.v2.ColorJitter.
at::Tensor color_jitter(const at::Tensor& images,
                        RandomSource rng,
                        const ColorJitterOptions& options);

// Makes grey, of as many channels. Source: torchvision.transforms.v2.RandomGrayscale.
at::Tensor random_grayscale(const at::Tensor& images, Generator& rng, double probability = 0.1);
at::Tensor random_grayscale(const at::Tensor& images, Generators& rngs, double probability = 0.1);

}  // namespace muster::transform
