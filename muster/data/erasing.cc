// Rectangles are drawn on the host, so each image's rectangle is filled by itself.
#include "muster/data/erasing.h"

#include <ATen/ops/randn.h>

#include <cmath>
#include <optional>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/data/as_double.h"
#include "muster/data/each_image.h"

namespace muster::transform {

namespace {

struct Rectangle {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

Tensor part_of(const Tensor& images, const Rectangle& part) {
  return images.narrow(-2, part.top, part.height).narrow(-1, part.left, part.width);
}

void check_value(const char* what, const Tensor& images, const Doubles& value) {
  check_images(what, images);
  if (value.empty())
    refuse_transform(what, "a value, or one a channel", "none");
  check_fill(what, images, value);
}

void check_erasing(const Tensor& images, const RandomErasingOptions& options) {
  const char* const what = "random_erasing";
  check_value(what, images, options.value);
  check_within(what, "probability", options.probability, 0, 1);
  check_range(what, "scale", options.scale, 0, 1);
  check_range(what, "ratio", options.ratio, 1e-6);
  if (options.noise && is_bytes(images))
    refuse_transform(what, "float32 images for noise", "uint8");
}

// Each channel is filled with a number of the host, which waits for no device.
void fill_part(const Tensor& part, const Doubles& value) {
  if (value.size() == 1) {
    part.fill_(value[0]);
    return;
  }
  for (const int64_t c : indices_below(std::ssize(value)))
    part.select(-3, c).fill_(value[c]);
}

// The draws come in torchvision's order. None of ten may fit: then nothing is erased.
std::optional<Rectangle> drawn_rectangle(const Tensor& images,
                                         Generator& rng,
                                         const RandomErasingOptions& options) {
  if (!rng.chance(options.probability))
    return std::nullopt;
  constexpr int kTries = 10;
  const int64_t rows = images.size(-2);
  const int64_t columns = images.size(-1);
  for (int i = 0; i < kTries; ++i) {
    const double area =
        as_double(rows * columns) * rng.uniform(options.scale.first, options.scale.second);
    const double ratio =
        std::exp(rng.uniform(std::log(options.ratio.first), std::log(options.ratio.second)));
    const int64_t height = rounded(std::sqrt(area * ratio));
    const int64_t width = rounded(std::sqrt(area / ratio));
    if (height >= rows || width >= columns)
      continue;
    const int64_t top = rng.integer(rows - height + 1);
    return Rectangle{
        .top = top, .left = rng.integer(columns - width + 1), .height = height, .width = width};
  }
  return std::nullopt;
}

// Changes `image`, one or a whole batch. A part that is empty takes nothing.
void erase_part(const Tensor& image,
                const Rectangle& rectangle,
                Generator& rng,
                const RandomErasingOptions& options) {
  const auto part = part_of(image, rectangle);
  if (!options.noise) {
    fill_part(part, options.value);
    return;
  }
  const auto noise = at::randn({image.size(-3), rectangle.height, rectangle.width}, rng.torch());
  part.copy_(image.is_cpu() ? noise : noise.pin_memory(), /*non_blocking=*/true);
}

}  // namespace

Tensor erase(const Tensor& images,
             int64_t top,
             int64_t left,
             int64_t height,
             int64_t width,
             const Doubles& value) {
  check_value("erase", images, value);
  const int64_t rows = images.size(-2);
  const int64_t columns = images.size(-1);
  // Subtractions cannot overflow here.
  const bool fits = top >= 0 && left >= 0 && height >= 0 && width >= 0 && height <= rows &&
                    width <= columns && top <= rows - height && left <= columns - width;
  if (!fits)
    refuse_transform(
        "erase",
        cat(height, "x", width, " from (", top, ", ", left, ") to lie within the image"),
        cat("images of height ", rows, " and width ", columns));
  auto out = images.clone();
  fill_part(part_of(out, {.top = top, .left = left, .height = height, .width = width}), value);
  return out;
}

Tensor random_erasing(const Tensor& images, Generator& rng, const RandomErasingOptions& options) {
  check_erasing(images, options);
  const auto rectangle = drawn_rectangle(images, rng, options);
  if (!rectangle)
    return images;
  auto out = images.clone();
  erase_part(out, *rectangle, rng, options);
  return out;
}

Tensor random_erasing(const Tensor& images, Generators& rngs, const RandomErasingOptions& options) {
  check_erasing(images, options);
  check_generators("random_erasing", images, rngs);
  if (images.dim() == 3)
    return random_erasing(images, rngs[0], options);
  auto out = images.clone();
  for (const int64_t i : indices_below(rngs.size()))
    if (const auto rectangle = drawn_rectangle(images, rngs[i], options))
      erase_part(out[i], *rectangle, rngs[i], options);
  return out;
}

}  // namespace muster::transform
