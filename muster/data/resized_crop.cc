// A random part of each image, resized: what most classifiers are trained on. A device gets all
// images of a batch as floats at once, since LibTorch resizes no bytes there, and each image's part
// is resized by one call.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_nearest2d.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/as_double.h"
#include "muster/data/each_image.h"
#include "muster/data/readers/encoded_image.h"
#include "muster/data/transforms.h"

namespace muster::transform {

namespace {

// The part that random_resized_crop keeps: of a random area and shape, at a random place. The draws
// come in torchvision's order.
ImagePart random_part(int64_t image_height,
                      int64_t image_width,
                      Generator& rng,
                      const ResizedCropOptions& options) {
  constexpr int kTries = 10;
  const char* const what = "random_resized_crop";
  check_image_size(what, image_height, image_width);
  check_range(what, "scale", options.scale, 0);
  check_range(what, "ratio", options.ratio, 1e-6);
  const auto [least_ratio, most_ratio] = options.ratio;
  const auto rows = as_double(image_height);
  const auto columns = as_double(image_width);
  for (int i = 0; i < kTries; ++i) {
    const double area = rows * columns * rng.uniform(options.scale.first, options.scale.second);
    // Shapes are drawn on a logarithmic scale, where twice as wide is as far from square as twice
    // as tall.
    const double ratio = std::exp(rng.uniform(std::log(least_ratio), std::log(most_ratio)));
    const int64_t w = rounded(std::sqrt(area * ratio));
    const int64_t h = rounded(std::sqrt(area / ratio));
    if (w < 1 || h < 1 || w > image_width || h > image_height)
      continue;
    const int64_t top = rng.integer(image_height - h + 1);
    return {.top = top, .left = rng.integer(image_width - w + 1), .height = h, .width = w};
  }
  // None of the draws fits into the picture. Then the part is the largest in the middle whose shape
  // is allowed.
  const double shape = std::clamp(columns / rows, least_ratio, most_ratio);
  const auto h = std::clamp<int64_t>(rounded(columns / shape), 1, image_height);
  const auto w = std::clamp<int64_t>(rounded(rows * shape), 1, image_width);
  return {.top = (image_height - h) / 2, .left = (image_width - w) / 2, .height = h, .width = w};
}

// Blended values of bytes are rounded as `resize` rounds them; the nearest need not be.
Tensor resized_on_device(const Tensor& images,
                         const std::vector<ImagePart>& parts,
                         int64_t height,
                         int64_t width,
                         Interpolation interpolation) {
  const bool is_nearest = interpolation == Interpolation::nearest;
  const auto values = is_nearest ? images : images.to(kFloat);
  auto out = at::empty({images.size(0), images.size(1), height, width}, values.options());
  for (const int64_t i : indices_below(std::ssize(parts))) {
    const auto& [top, left, part_height, part_width] = parts[i];
    auto place = out.narrow(0, i, 1);
    const auto part =
        values.narrow(0, i, 1).narrow(2, top, part_height).narrow(3, left, part_width);
    if (is_nearest)
      at::upsample_nearest2d_out(place, part, {height, width});
    else
      at::_upsample_bilinear2d_aa_out(place, part, {height, width}, /*align_corners=*/false);
  }
  return out.scalar_type() == images.scalar_type() ? out : out.round_().to(kByte);
}

Tensor resized_here(const Tensor& images,
                    const std::vector<ImagePart>& parts,
                    int64_t height,
                    int64_t width,
                    Interpolation interpolation) {
  return at::stack(mapped_indices(std::ssize(parts), [&](int64_t i) {
    const auto& [top, left, part_height, part_width] = parts[i];
    return resize(
        crop(images[i], top, left, part_height, part_width), height, width, interpolation);
  }));
}

}  // namespace

Tensor random_resized_crop(const Tensor& image,
                           int64_t height,
                           int64_t width,
                           Generator& rng,
                           const ResizedCropOptions& options) {
  check_image("random_resized_crop", image);
  const auto part = random_part(image.size(1), image.size(2), rng, options);
  return resize(crop(image, part.top, part.left, part.height, part.width),
                height,
                width,
                options.interpolation);
}

Tensor random_resized_crop(const EncodedImage& image,
                           int64_t height,
                           int64_t width,
                           Generator& rng,
                           const ResizedCropOptions& options) {
  return resize(image.decode(random_part(image.height(), image.width(), rng, options)),
                height,
                width,
                options.interpolation);
}

Tensor random_resized_crop(const Tensor& images,
                           int64_t height,
                           int64_t width,
                           Generators& rngs,
                           const ResizedCropOptions& options) {
  check_batch("random_resized_crop", images, rngs);
  check_image_size("random_resized_crop", height, width);
  if (images.size(0) == 0)
    return at::empty({0, images.size(1), height, width}, images.options());
  std::vector<ImagePart> parts = mapped_indices(rngs.size(), [&](int64_t i) {
    return random_part(images.size(2), images.size(3), rngs[i], options);
  });
  const auto resized = images.is_cpu() ? resized_here : resized_on_device;
  return resized(images, parts, height, width, options.interpolation);
}

}  // namespace muster::transform
