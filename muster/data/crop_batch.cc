// Crops and flips of the images of a batch where it is, with the draws of the single images'.
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstdint>

#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/data/each_image.h"
#include "muster/data/transforms.h"

namespace muster::transform {

Tensor random_crop(
    const Tensor& images, int64_t height, int64_t width, Generators& rngs, int64_t padding) {
  check_batch("random_crop", images, rngs);
  check_image_size("random_crop", height, width);
  check_padding("random_crop", padding, std::max(images.size(2), images.size(3)));
  const int64_t rows = images.size(2) + 2 * padding - height;
  const int64_t columns = images.size(3) + 2 * padding - width;
  if (rows < 0 || columns < 0)
    refuse_transform("random_crop",
                     cat("images of at least ", height, "x", width, " with padding ", padding),
                     cat("images of height ", images.size(2), " and width ", images.size(3)));
  const auto padded = at::constant_pad_nd(images, {padding, padding, padding, padding});
  Tensors parts;
  for (const int64_t i : indices_below(rngs.size())) {
    const int64_t top = rngs[i].integer(rows + 1);
    const int64_t left = rngs[i].integer(columns + 1);
    parts.push_back(padded[i].narrow(1, top, height).narrow(2, left, width));
  }
  return parts.empty() ? padded.narrow(2, 0, height).narrow(3, 0, width) : at::stack(parts);
}

Tensor random_flip(const Tensor& images, Generators& rngs, double probability) {
  check_batch("random_flip", images, rngs);
  return by_chance(images, rngs, probability, [](const Tensor& some) { return some.flip(3); });
}

}  // namespace muster::transform
