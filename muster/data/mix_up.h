// Pictures of a batch mixed with each other, and their labels with them: MixUp and CutMix. Called on a batch
// that a loader has given, on any device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "muster/data/generator.h"

namespace muster::transform {

// Shapes: images [B, channels, height, width] float32; targets [B, classes] float32, for cross entropy with
// soft labels.
struct SoftBatch {
  at::Tensor images;
  at::Tensor targets;
};

// lambda × each picture + (1 - lambda) × the one before it in the batch, and so the labels, with one lambda
// of Beta(alpha, alpha) for the batch. Source: torchvision.transforms.v2.MixUp.
// Shapes: images [B, channels, height, width] float32, labels [B] int64, below `classes`.
// Throws: invalid_argument for other shapes and types, alpha that is not above 0, and labels out of range.
SoftBatch mix_up(const at::Tensor& images, const at::Tensor& labels, int64_t classes, double alpha,
                 Generator& rng);

// A rectangle of each picture comes from the one before it, and as much of its label. Source:
// torchvision.transforms.v2.CutMix. Shapes, Throws: as mix_up.
SoftBatch cut_mix(const at::Tensor& images, const at::Tensor& labels, int64_t classes, double alpha,
                  Generator& rng);

}  // namespace muster::transform
