// A matrix leads places of the result back to places of the image, where LibTorch's grid_sampler
// reads. The arithmetic, in float32, is torchvision's, with its roundings: which pixel is the
// nearest can depend on them. Where there is a value for what lies outside, a mask is read along.
#include "muster/data/affine.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rot90.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/as_double.h"
#include "muster/data/image_kernels.h"

namespace muster::transform {

namespace {

// The center, counted from the middle of the images.
std::array<double, 2> center_of(const Tensor& images, const std::optional<Range>& center) {
  if (!center)
    return {0, 0};
  return {center->first - 0.5 * as_double(images.size(-1)),
          center->second - 0.5 * as_double(images.size(-2))};
}

}  // namespace

namespace kernel {

namespace {

// The places of pixels, counted from the middle: -(count - 1) / 2 to (count - 1) / 2.
Tensor from_middle(int64_t count, const Tensor& like) {
  return at::arange(count, like.options().dtype(kFloat)).add_((1.0 - as_double(count)) / 2);
}

// One of the six numbers of all matrices, in units of half the image's extent.
Tensor entry_of(const Tensor& like, const Matrices& matrices, size_t which, double half) {
  Numbers entries;
  const float unit = as_float(half);
  for (const Matrix& matrix : matrices) {
    const float entry = as_float(matrix[which]);
    entries.push_back(entry / unit);
  }
  return on_device_of(like, entries).squeeze(1);
}

// Says where the image is read. Shapes: [N, height, width, 2].
Tensor grid_of(const Tensor& images, const Matrices& matrices) {
  const int64_t height = images.size(2);
  const int64_t width = images.size(3);
  const auto x = from_middle(width, images);
  const auto y = from_middle(height, images).unsqueeze(1);
  const auto row = [&](size_t first, double half) {
    const auto entry = [&](size_t i) {
      return entry_of(images, matrices, first + i, half);
    };
    return (x * entry(0) + y * entry(1)).add_(entry(2));
  };
  return at::stack({row(0, 0.5 * as_double(width)), row(3, 0.5 * as_double(height))}, 3);
}

Tensor fill_of(const Tensor& like, const Doubles& fill) {
  return on_device_of(like, fill).view({1, -1, 1, 1});
}

Tensor sampled(const Tensor& values, const Tensor& grid, Interpolation interpolation) {
  constexpr int64_t kBilinear = 0;
  constexpr int64_t kNearest = 1;
  constexpr int64_t kZeros = 0;
  const bool is_nearest = interpolation == Interpolation::nearest;
  return at::grid_sampler(
      values, grid, is_nearest ? kNearest : kBilinear, kZeros, /*align_corners=*/false);
}

// Fills what lies outside of the image. The last channel is the mask: 1 within the image.
Tensor filled(const Tensor& with_mask, const AffineOptions& options) {
  const int64_t channels = with_mask.size(1) - 1;
  const auto values = with_mask.narrow(1, 0, channels);
  const auto mask = with_mask.narrow(1, channels, 1);
  const auto fill = fill_of(with_mask, options.fill);
  if (options.interpolation == Interpolation::nearest)
    return at::where(mask.lt(0.5), fill, values);
  return values.sub(fill).mul_(mask).add_(fill);
}

// The quarters that an angle from 0 to below 360 has; nothing for another angle. An odd number of
// quarters gives an image of another shape, unless it is a square.
std::optional<int64_t> quarters_of(double angle, const Tensor& images) {
  const bool is_square = images.size(2) == images.size(3);
  for (int64_t quarters = 0; quarters < 4; quarters += is_square ? 1 : 2)
    if (angle == 90 * as_double(quarters))
      return quarters;
  return std::nullopt;
}

}  // namespace

Matrix inverse_of(const AffineMap& map) {
  const auto radians = [](double degrees) {
    return degrees * (std::numbers::pi / 180);
  };
  const double rotation = radians(map.angle);
  const double shear_y = radians(map.shear[1]);
  const double a = std::cos(rotation - shear_y) / std::cos(shear_y);
  const double c = std::sin(rotation - shear_y) / std::cos(shear_y);
  const double tangent = std::tan(radians(map.shear[0]));
  const double b = -(a * tangent + std::sin(rotation));
  const double d = std::cos(rotation) - c * tangent;
  const auto [x, y] = map.center;
  Matrix matrix{d / map.scale, -b / map.scale, 0, -c / map.scale, a / map.scale, 0};
  const double moved_x = x + map.translate[0];
  const double moved_y = y + map.translate[1];
  matrix[2] = x - matrix[0] * moved_x - matrix[1] * moved_y;
  matrix[5] = y - matrix[3] * moved_x - matrix[4] * moved_y;
  return matrix;
}

Tensor affine(const Tensor& images, const Matrices& matrices, const AffineOptions& options) {
  if (images.numel() == 0)
    return images;
  auto values = images.to(kFloat);
  if (!options.fill.empty()) {
    const auto mask =
        at::ones({values.size(0), 1, values.size(2), values.size(3)}, values.options());
    values = at::cat({values, mask}, 1);
  }
  auto found = sampled(values, grid_of(images, matrices), options.interpolation);
  if (!options.fill.empty())
    found = filled(found, options);
  return is_bytes(images) ? found.round().to(kByte) : found;
}

Tensor rotate(const Tensor& images, const Numbers& angles, const AffineOptions& options) {
  constexpr int64_t kOther = 4;
  Kinds kinds;
  Matrices matrices;
  for (const double angle : angles) {
    const double turn = angle - 360 * std::floor(angle / 360);
    const auto quarters = options.center ? std::nullopt : quarters_of(turn, images);
    kinds.push_back(quarters.value_or(kOther));
    matrices.push_back(inverse_of({.angle = -turn, .center = center_of(images, options.center)}));
  }
  return by_kind(images, kinds, [&](int64_t kind, const Tensor& part, const auto& which) {
    return kind == kOther ? affine(part, chosen(matrices, which), options)
                          : at::rot90(part, kind, {2, 3});
  });
}

}  // namespace kernel

namespace {

constexpr double kLeastScale = 1e-6;
constexpr double kMostShear = 89.9;  // degrees; 90 would leave nothing of the image

void check_shear(const char* what, Range degrees) {
  check_range(what, "shear", degrees, -kMostShear, kMostShear);
}

void check_affine(const Tensor& images, const RandomAffineOptions& options) {
  const char* const what = "random_affine";
  check_images(what, images);
  check_range(what, "number of degrees", options.degrees);
  check_within(what, "translation", options.translate.first, 0, 1);
  check_within(what, "translation", options.translate.second, 0, 1);
  check_range(what, "scale", options.scale, kLeastScale);
  check_shear(what, options.shear_x);
  check_shear(what, options.shear_y);
  check_fill(what, images, options.fill);
}

Tensor rotate_all(const Tensor& images, const Numbers& angles, const AffineOptions& options) {
  return in_parts(images, [&](const Tensor& part, const auto& which) {
    return kernel::rotate(part, chosen(angles, which), options);
  });
}

Tensor affine_all(const Tensor& images,
                  const kernel::Matrices& matrices,
                  const AffineOptions& options) {
  return in_parts(images, [&](const Tensor& part, const auto& which) {
    return kernel::affine(part, chosen(matrices, which), options);
  });
}

template <class Options>
AffineOptions affine_options(const Options& options) {
  return {.interpolation = options.interpolation, .fill = options.fill, .center = options.center};
}

// The draws come in torchvision's order; what is not to change costs none there, and one here.
kernel::Matrix drawn_matrix(const Tensor& images,
                            Generator& rng,
                            const RandomAffineOptions& options) {
  const auto draw = [&](Range range) {
    return rng.uniform(range.first, range.second);
  };
  const double most_x = options.translate.first * as_double(images.size(-1));
  const double most_y = options.translate.second * as_double(images.size(-2));
  kernel::AffineMap map{.angle = draw(options.degrees)};
  map.translate[0] = std::nearbyint(draw({-most_x, most_x}));
  map.translate[1] = std::nearbyint(draw({-most_y, most_y}));
  map.scale = draw(options.scale);
  map.shear[0] = draw(options.shear_x);
  map.shear[1] = draw(options.shear_y);
  map.center = center_of(images, options.center);
  return inverse_of(map);
}

}  // namespace

Tensor affine(const Tensor& images,
              double angle,
              Range translate,
              double scale,
              Range shear,
              const AffineOptions& options) {
  check_images("affine", images);
  check_within("affine", "number of degrees", angle);
  check_within("affine", "translation", translate.first);
  check_within("affine", "translation", translate.second);
  check_within("affine", "scale", scale, kLeastScale);
  check_shear("affine", {shear.first, shear.first});
  check_shear("affine", {shear.second, shear.second});
  check_fill("affine", images, options.fill);
  const auto matrix = kernel::inverse_of({.angle = angle,
                                          .translate = {translate.first, translate.second},
                                          .scale = scale,
                                          .shear = {shear.first, shear.second},
                                          .center = center_of(images, options.center)});
  return affine_all(images, std::vector(images_of(images), matrix), options);
}

Tensor rotate(const Tensor& images, double angle, const AffineOptions& options) {
  check_images("rotate", images);
  check_within("rotate", "number of degrees", angle);
  check_fill("rotate", images, options.fill);
  return rotate_all(images, Numbers(images_of(images), angle), options);
}

Tensor random_rotation(const Tensor& images,
                       RandomSource rng,
                       const RandomRotationOptions& options) {
  const char* const what = "random_rotation";
  check_images(what, images);
  check_range(what, "number of degrees", options.degrees);
  check_fill(what, images, options.fill);
  const auto angles = drawn_for_each(what, images, rng, [&](Generator& of_image) {
    return of_image.uniform(options.degrees.first, options.degrees.second);
  });
  return rotate_all(images, angles, affine_options(options));
}

Tensor random_affine(const Tensor& images, RandomSource rng, const RandomAffineOptions& options) {
  check_affine(images, options);
  const auto matrices = drawn_for_each("random_affine", images, rng, [&](Generator& of_image) {
    return drawn_matrix(images, of_image, options);
  });
  return affine_all(images, matrices, affine_options(options));
}

}  // namespace muster::transform
