// Mixes each image of a batch with the one before it (a roll by one), and its label in the same
// proportion. One proportion is drawn for the whole batch. cut_mix replaces a box instead of
// blending; where the box is cut by the border, the labels follow the area that was really
// replaced.
#include "muster/data/mix_up.h"

#include <ATen/ops/one_hot.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/as_double.h"
#include "muster/data/each_image.h"

namespace muster::transform {

namespace {

constexpr Refusal refuse_mix{"transform: mix of a batch", "correct the call"};

bool is_of(const Tensor& tensor, int64_t dimensions, ScalarType type) {
  return tensor.defined() && tensor.dim() == dimensions && tensor.scalar_type() == type;
}

// On a GPU one_hot finds labels out of range; a check here would wait for it.
void check_mix_labels(const Tensor& labels, int64_t classes) {
  if (!labels.is_cpu() || labels.numel() == 0)
    return;
  const auto least = labels.min().item<int64_t>();
  const auto most = labels.max().item<int64_t>();
  if (least < 0 || most >= classes)
    refuse_mix(cat("labels from 0 to ", classes - 1), cat(least < 0 ? least : most));
}

void check_mix(const Tensor& images, const Tensor& labels, int64_t classes, double alpha) {
  if (!is_of(images, 4, kFloat))
    refuse_mix("images [B, channels, height, width] float32", tensor_text(images));
  if (!is_of(labels, 1, kLong) || labels.size(0) != images.size(0))
    refuse_mix(cat("int64 labels [", images.size(0), "]"), tensor_text(labels));
  // The negated comparison refuses NaN too.
  if (!(alpha > 0) || !std::isfinite(alpha))
    refuse_mix("an alpha above 0", cat(alpha));
  check_mix_labels(labels, classes);
}

// A draw of Beta(alpha, alpha) is the share of one gamma draw in the sum of two. Both draws can be
// too small for a double; then the share is at one of its ends.
double beta(double alpha, Generator& rng) {
  std::gamma_distribution<double> gamma(alpha);
  const double a = gamma(rng);
  const double b = gamma(rng);
  if (a + b > 0)
    return a / (a + b);
  return rng.chance(0.5) ? 1 : 0;
}

// The targets are float32 [B, classes], each row summing to 1.
Tensor mixed_labels(const Tensor& labels, int64_t classes, double lambda) {
  const auto sharp = at::one_hot(labels, classes).to(kFloat);
  return sharp.roll(1, 0).mul_(1 - lambda).add_(sharp.mul(lambda));
}

}  // namespace

// The caller's images stay as they are: roll() makes a copy, and the blending happens there.
SoftBatch mix_up(
    const Tensor& images, const Tensor& labels, int64_t classes, double alpha, Generator& rng) {
  check_mix(images, labels, classes, alpha);
  const double lambda = beta(alpha, rng);
  return {.images = images.roll(1, 0).mul_(1 - lambda).add_(images.mul(lambda)),
          .targets = mixed_labels(labels, classes, lambda)};
}

SoftBatch cut_mix(
    const Tensor& images, const Tensor& labels, int64_t classes, double alpha, Generator& rng) {
  check_mix(images, labels, classes, alpha);
  const double lambda = beta(alpha, rng);
  const int64_t height = images.size(2);
  const int64_t width = images.size(3);
  if (height == 0 || width == 0)
    refuse_mix("images with pixels", cat(height, "x", width));
  const int64_t x = rng.integer(width);
  const int64_t y = rng.integer(height);
  // The box has the share 1 - lambda of the area, so its sides have the root of that share.
  const double half = 0.5 * std::sqrt(1 - lambda);
  const auto half_width = static_cast<int64_t>(half * as_double(width));
  const auto half_height = static_cast<int64_t>(half * as_double(height));
  const int64_t left = std::max<int64_t>(x - half_width, 0);
  const int64_t top = std::max<int64_t>(y - half_height, 0);
  const int64_t columns = std::min(x + half_width, width) - left;
  const int64_t rows = std::min(y + half_height, height) - top;
  auto out = images.clone();
  const auto part = [&](const Tensor& of) {
    return of.narrow(2, top, rows).narrow(3, left, columns);
  };
  if (rows > 0 && columns > 0)
    part(out).copy_(part(images.roll(1, 0)));
  const double kept = 1 - as_double(rows * columns) / as_double(height * width);
  return {.images = out, .targets = mixed_labels(labels, classes, kept)};
}

}  // namespace muster::transform
