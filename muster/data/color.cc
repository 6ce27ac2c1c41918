// Checks what users give, draws what is random, and hands the images to the kernels. An image costs
// the same draws whatever comes of them, so that later draws do not depend on it.
#include "muster/data/color.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/data/as_double.h"
#include "muster/data/image_kernels.h"

namespace muster::transform {

namespace {

// The same number for every image.
template <class Kernel>
Tensor with_number(const Tensor& images, double number, const Kernel& kernel) {
  return in_parts(images, [&](const Tensor& part, const auto& which) {
    return kernel(part, Numbers(which.size(), number));
  });
}

template <class Kernel>
Tensor without_numbers(const Tensor& images, const Kernel& kernel) {
  return in_parts(images, [&](const Tensor& part, const auto& /*which*/) { return kernel(part); });
}

template <class Kernel>
Tensor adjusted(const char* what, const Tensor& images, double factor, const Kernel& kernel) {
  check_colors(what, images);
  check_within(what, "factor", factor, 0);
  return with_number(images, factor, kernel);
}

// The four changes of color_jitter, in the order in which torchvision draws their numbers.
constexpr int64_t kChanges = 4;
constexpr std::array kChangeKernels{
    kernel::brightness, kernel::contrast, kernel::saturation, kernel::hue};

// Which of the four changes are wanted, and how far.
using JitterRanges = std::array<std::optional<Range>, kChanges>;

JitterRanges ranges_of(const ColorJitterOptions& options) {
  return {options.brightness.range("brightness", 1, 0, kMostNumber),
          options.contrast.range("contrast", 1, 0, kMostNumber),
          options.saturation.range("saturation", 1, 0, kMostNumber),
          options.hue.range("hue", 0, -0.5, 0.5)};
}

// What chance decides of an image.
struct Jitter {
  std::array<int64_t, kChanges> order{};
  std::array<double, kChanges> numbers{};
};

// A shuffle, as torch.randperm, then the numbers in torchvision's order.
Jitter drawn_jitter(const JitterRanges& ranges, Generator& rng) {
  Jitter drawn;
  std::iota(drawn.order.begin(), drawn.order.end(), 0);
  for (int64_t i = kChanges; i > 1; --i)
    std::swap(drawn.order[i - 1], drawn.order[rng.integer(i)]);
  for (const int64_t c : indices_below(kChanges))
    if (ranges[c])
      drawn.numbers[c] = rng.uniform(ranges[c]->first, ranges[c]->second);
  return drawn;
}

// The changes that come first in their images' orders, then those that come second, and so on.
Tensor jittered(const Tensor& images,
                const std::vector<Jitter>& drawn,
                const JitterRanges& ranges) {
  Tensor now = images;
  for (const int64_t turn : indices_below(kChanges)) {
    Kinds kinds;
    for (const Jitter& of_image : drawn) {
      const int64_t change = of_image.order[turn];
      kinds.push_back(ranges[change] ? change : -1);
    }
    now = by_kind(now, kinds, [&](int64_t kind, const Tensor& part, const auto& which) {
      Numbers numbers = mapped(which, [&](const int64_t i) { return drawn[i].numbers[kind]; });
      return kChangeKernels.at(kind)(part, numbers);
    });
  }
  return now;
}

}  // namespace

Tensor adjust_brightness(const Tensor& images, double factor) {
  return adjusted("adjust_brightness", images, factor, kernel::brightness);
}

Tensor adjust_contrast(const Tensor& images, double factor) {
  return adjusted("adjust_contrast", images, factor, kernel::contrast);
}

Tensor adjust_saturation(const Tensor& images, double factor) {
  return adjusted("adjust_saturation", images, factor, kernel::saturation);
}

Tensor adjust_hue(const Tensor& images, double shift) {
  check_colors("adjust_hue", images);
  check_within("adjust_hue", "shift", shift, -0.5, 0.5);
  return with_number(images, shift, kernel::hue);
}

Tensor adjust_sharpness(const Tensor& images, double factor) {
  return adjusted("adjust_sharpness", images, factor, kernel::sharpness);
}

Tensor rgb_to_grayscale(const Tensor& images, int64_t channels) {
  check_colors("rgb_to_grayscale", images);
  if (channels != 1 && channels != 3)
    refuse_transform("rgb_to_grayscale", "1 or 3 channels to make", cat(channels));
  return without_numbers(images, [&](const Tensor& part) {
    return kernel::grey(part).to(part.scalar_type()).expand({-1, channels, -1, -1}).clone();
  });
}

Tensor invert(const Tensor& images) {
  check_images("invert", images);
  return without_numbers(images, kernel::invert);
}

Tensor posterize(const Tensor& images, int64_t bits) {
  check_images("posterize", images);
  check_within("posterize", "number of bits", as_double(bits), 0, 8);
  return with_number(images, as_double(bits), kernel::posterize);
}

Tensor solarize(const Tensor& images, double threshold) {
  check_images("solarize", images);
  check_within("solarize", "threshold", threshold, -kMostNumber, bound_of(images));
  return with_number(images, threshold, kernel::solarize);
}

Tensor autocontrast(const Tensor& images) {
  check_colors("autocontrast", images);
  return without_numbers(images, kernel::autocontrast);
}

Tensor equalize(const Tensor& images) {
  check_images("equalize", images);
  return without_numbers(images, kernel::equalize);
}

// The negated comparisons refuse NaN too.
std::optional<Range> JitterRange::range(const char* name,
                                        double center,
                                        double least,
                                        double most) const {
  if (!given_ && !(around_ >= 0 && center + around_ <= most))
    refuse_transform("color_jitter",
                     cat("a ", name, " of 0 or more", center == 0 ? " and at most 0.5" : ""),
                     cat(around_));
  const auto [low, high] =
      given_.value_or(std::pair{std::max(center - around_, least), center + around_});
  if (!(least <= low && low <= high && high <= most))
    refuse_transform(
        "color_jitter",
        cat("a least and a most ", name, center == 0 ? " from -0.5 to 0.5" : " of 0 or more"),
        cat(low, " and ", high));
  if (low == center && high == center)
    return std::nullopt;
  return std::pair{low, high};
}

Tensor color_jitter(const Tensor& images, RandomSource rng, const ColorJitterOptions& options) {
  check_colors("color_jitter", images);
  const auto ranges = ranges_of(options);
  const auto drawn = drawn_for_each("color_jitter", images, rng, [&](Generator& of_image) {
    return drawn_jitter(ranges, of_image);
  });
  return in_parts(images, [&](const Tensor& part, const auto& which) {
    return jittered(part, chosen(drawn, which), ranges);
  });
}

Tensor random_grayscale(const Tensor& images, Generator& rng, double probability) {
  check_colors("random_grayscale", images);
  check_within("random_grayscale", "probability", probability, 0, 1);
  return rng.chance(probability) ? rgb_to_grayscale(images, images.size(-3)) : images;
}

Tensor random_grayscale(const Tensor& images, Generators& rngs, double probability) {
  check_colors("random_grayscale", images);
  check_generators("random_grayscale", images, rngs);
  check_within("random_grayscale", "probability", probability, 0, 1);
  return by_chance(images, rngs, probability, [](const Tensor& some) {
    return kernel::grey(some).to(some.scalar_type()).expand_as(some);
  });
}

}  // namespace muster::transform
