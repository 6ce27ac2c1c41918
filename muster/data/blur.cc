// Blurs and sharpens by weighted sums of moved images. A Gaussian kernel is one along the rows and
// then one along the columns, so it costs the sum of its width and its height, not their product.
#include "muster/data/blur.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/reflection_pad2d.h>

#include <cmath>
#include <limits>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/as_double.h"
#include "muster/data/image_kernels.h"

namespace muster::transform {

namespace kernel {

namespace {

// The weights of `taps` places in one direction, by place and image. Those of an image add up to 1.
std::vector<Numbers> gaussian_weights(int64_t taps, const Numbers& sigmas) {
  std::vector<Numbers> weights(taps, Numbers(sigmas.size()));
  for (const size_t image : indices_of(sigmas)) {
    double sum = 0;
    for (const int64_t tap : indices_below(taps)) {
      const double x = (as_double(tap) - as_double(taps - 1) / 2) / sigmas[image];
      sum += weights[tap][image] = std::exp(-0.5 * x * x);
    }
    for (Numbers& of_tap : weights)
      of_tap[image] /= sum;
  }
  return weights;
}

// Sums along a dimension, which becomes shorter by the number of weights less 1.
Tensor weighted_sum(const Tensor& values, int64_t dimension, const std::vector<Numbers>& weights) {
  const int64_t extent = values.size(dimension) - std::ssize(weights) + 1;
  auto sum = times(values.narrow(dimension, 0, extent), weights[0]);
  for (int64_t tap = 1; tap < std::ssize(weights); ++tap)
    add_times(sum, values.narrow(dimension, tap, extent), weights[tap]);
  return sum;
}

// Sums each place and its two neighbours along a dimension.
Tensor sum_of_three(const Tensor& values, int64_t dimension) {
  const int64_t extent = values.size(dimension) - 2;
  const auto from = [&](int64_t begin) {
    return values.narrow(dimension, begin, extent);
  };
  return from(0).add(from(1)).add_(from(2));
}

}  // namespace

Tensor gaussian_blur(const Tensor& images,
                     int64_t width,
                     int64_t height,
                     const Numbers& sigmas_x,
                     const Numbers& sigmas_y) {
  if (images.numel() == 0)
    return images;
  const auto padded =
      at::reflection_pad2d(images.to(kFloat), {width / 2, width / 2, height / 2, height / 2});
  const auto rows = weighted_sum(padded, 3, gaussian_weights(width, sigmas_x));
  auto blurred = weighted_sum(rows, 2, gaussian_weights(height, sigmas_y));
  return is_bytes(images) ? blurred.round_().to(kByte) : blurred;
}

// The border, which has not all its neighbours, stays as it is.
Tensor sharpness(const Tensor& images, const Numbers& factors) {
  const int64_t height = images.size(2);
  const int64_t width = images.size(3);
  if (images.numel() == 0 || height <= 2 || width <= 2)
    return images;
  const Numbers smooth_parts = mapped(factors, [](double factor) { return 1 - factor; });
  auto out = images.to(images.options().dtype(kFloat),
                       /*non_blocking=*/false,
                       /*copy=*/true,
                       at::MemoryFormat::Contiguous);
  auto inner = out.narrow(2, 1, height - 2).narrow(3, 1, width - 2);
  auto smooth = sum_of_three(sum_of_three(out, 3), 2);
  smooth.add_(inner, 4).div_(13);
  if (is_bytes(images))
    smooth.round_();
  add_times(inner, smooth.sub_(inner), smooth_parts);
  return out.clamp_(0, bound_of(images)).to(images.scalar_type());
}

}  // namespace kernel

namespace {

void check_kernel(const char* what, const Tensor& images, std::pair<int64_t, int64_t> kernel) {
  check_images(what, images);
  const auto [width, height] = kernel;
  const auto is_odd = [](int64_t extent) {
    return extent > 0 && extent % 2 == 1;
  };
  if (!is_odd(width) || !is_odd(height))
    refuse_transform(what, "an odd width and height of the kernel", cat(width, " and ", height));
  if (width / 2 >= images.size(-1) || height / 2 >= images.size(-2))
    refuse_transform(what,
                     cat("an image of more than ",
                         height / 2,
                         " rows and ",
                         width / 2,
                         " columns, half of the kernel"),
                     cat(images.size(-2), "x", images.size(-1)));
}

constexpr double kLeastSigma = std::numeric_limits<float>::min();
Tensor blur_all(const Tensor& images,
                std::pair<int64_t, int64_t> kernel_size,
                const Numbers& sigmas_x,
                const Numbers& sigmas_y) {
  return in_parts(images, [&](const Tensor& part, const auto& which) {
    return kernel::gaussian_blur(part,
                                 kernel_size.first,
                                 kernel_size.second,
                                 chosen(sigmas_x, which),
                                 chosen(sigmas_y, which));
  });
}

}  // namespace

Tensor gaussian_blur(const Tensor& images, std::pair<int64_t, int64_t> kernel, Range sigma) {
  check_kernel("gaussian_blur", images, kernel);
  check_within("gaussian_blur", "sigma", sigma.first, kLeastSigma);
  check_within("gaussian_blur", "sigma", sigma.second, kLeastSigma);
  const int64_t count = images_of(images);
  return blur_all(images, kernel, Numbers(count, sigma.first), Numbers(count, sigma.second));
}

Tensor random_gaussian_blur(const Tensor& images,
                            RandomSource rng,
                            const GaussianBlurOptions& options) {
  const char* const what = "random_gaussian_blur";
  check_kernel(what, images, options.kernel);
  check_range(what, "sigma", options.sigma, kLeastSigma);
  const auto sigmas = drawn_for_each(what, images, rng, [&](Generator& of_image) {
    return of_image.uniform(options.sigma.first, options.sigma.second);
  });
  return blur_all(images, options.kernel, sigmas, sigmas);
}

}  // namespace muster::transform
