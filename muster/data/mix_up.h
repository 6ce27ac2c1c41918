// MixUp and CutMix: mix the images of a batch with each other, and their labels accordingly. Call
// them on a batch from a loader, on any device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "muster/data/generator.h"

namespace muster::transform {

// Shapes: images [B, channels, height, width] float32; targets [B, classes] float32, for cross
// entropy with soft labels.
struct SoftBatch {
  at::Tensor images;
  at::Tensor targets;
};

// lambda × each image + (1 - lambda) × the previous one in the batch, labels likewise, with one
// lambda from Beta(alpha, alpha) per batch. Shapes: images [B, channels, height, width] float32,
// labels [B] int64, below `classes`. Throws: invalid_argument for other shapes and types, an alpha
// that is not positive, and labels out of range. Source: torchvision.transforms.v2.MixUp.
SoftBatch mix_up(const at::Tensor& images,
                 const at::Tensor& labels,
                 int64_t classes,
                 double alpha,
                 Generator& rng);

// Replaces a rectangle of each image by that of the previous image, and the same fraction of its
// label. Shapes, Throws: as mix_up. Source: torchvision.transforms.v2.CutMix.
SoftBatch cut_mix(const at::Tensor& images,
                  const at::Tensor& labels,
                  int64_t classes,
                  double alpha,
                  Generator& rng);

}  // namespace muster::transform
