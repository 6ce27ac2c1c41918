// Crops and flips of the images of a batch where it is, with the draws of the single images'.
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>

#include <cstdint>
#include <vector>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/data/each_image.h"
#include "muster/data/transforms.h"

namespace muster::transform {

at::Tensor random_crop(
    const at::Tensor& images, int64_t height, int64_t width, Generators& rngs, int64_t padding) {
  check_batch("random_crop", images, rngs);
  const int64_t rows = images.size(2) + 2 * padding - height;
  const int64_t columns = images.size(3) + 2 * padding - width;
  if (height < 1 || width < 1 || padding < 0 || rows < 0 || columns < 0)
    refuse_transform("random_crop",
                     cat("images of at least ", height, "x", width, " with padding ", padding),
                     cat("images of height ", images.size(2), " and width ", images.size(3)));
  const auto padded = at::constant_pad_nd(images, {padding, padding, padding, padding});
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < rngs.size(); ++i) {
    const int64_t top = rngs[i].integer(rows + 1);
    const int64_t left = rngs[i].integer(columns + 1);
    parts.push_back(padded[i].narrow(1, top, height).narrow(2, left, width));
  }
  return parts.empty() ? padded.narrow(2, 0, height).narrow(3, 0, width) : at::stack(parts);
}

at::Tensor random_flip(const at::Tensor& images, Generators& rngs, double probability) {
  check_batch("random_flip", images, rngs);
  const Kinds kinds = mapped_indices(
      rngs.size(), [&](int64_t i) -> int64_t { return rngs[i].chance(probability) ? 0 : -1; });
  return in_parts(images, [&](const at::Tensor& part, const std::vector<int64_t>& which) {
    return by_kind(
        part, chosen(kinds, which), [](int64_t, const at::Tensor& some, const auto& /*which*/) {
          return some.flip(3);
        });
  });
}

}  // namespace muster::transform
