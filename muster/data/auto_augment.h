// Policies that choose among changes of an image: AutoAugment, RandAugment and TrivialAugmentWide,
// with torchvision's changes, magnitudes and draws.
//
// Each takes one image or a batch, on any device: Shapes: [channels, height, width] or
// [B, channels, height, width], uint8 or float32 from 0 to 1, with 1 or 3 channels; the result
// alike. With one generator a batch's images all change alike; with one for each image, each as it
// would alone. Throws: invalid_argument, with the expected value, for another shape, type or
// number.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "muster/data/affine.h"
#include "muster/data/generators.h"

namespace muster::transform {

// What a published policy was searched for on.
enum class AutoAugmentPolicy { imagenet, cifar10, svhn };

struct AutoAugmentOptions {
  AutoAugmentPolicy policy = AutoAugmentPolicy::imagenet;
  Interpolation interpolation = Interpolation::nearest;
  std::vector<double> fill{};  // as AffineOptions
};
// One of a policy's 25 pairs of changes. Each change of it has a magnitude, and a probability with
// which it is made. Source: torchvision.transforms.v2.AutoAugment.
at::Tensor auto_augment(const at::Tensor& images,
                        RandomSource rng,
                        const AutoAugmentOptions& options = {});

struct RandAugmentOptions {
  int num_ops = 2;    // changes, one after the other
  int magnitude = 9;  // of each, below num_magnitude_bins
  int num_magnitude_bins = 31;
  Interpolation interpolation = Interpolation::nearest;
  std::vector<double> fill{};  // as AffineOptions
};
// Source: torchvision.transforms.v2.RandAugment.
at::Tensor rand_augment(const at::Tensor& images,
                        RandomSource rng,
                        const RandAugmentOptions& options = {});

struct TrivialAugmentOptions {
  int num_magnitude_bins = 31;
  Interpolation interpolation = Interpolation::nearest;
  std::vector<double> fill{};
};
// One change, of a random magnitude. Source: torchvision.transforms.v2.TrivialAugmentWide.
at::Tensor trivial_augment_wide(const at::Tensor& images,
                                RandomSource rng,
                                const TrivialAugmentOptions& options = {});

}  // namespace muster::transform
