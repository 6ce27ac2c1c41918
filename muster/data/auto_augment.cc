// A change is chosen by chance, and a magnitude from a row of evenly spaced ones. torchvision's
// rows are float32, and so are these.
#include "muster/data/auto_augment.h"

#include <ATen/ops/linspace.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/as_double.h"
#include "muster/data/auto_augment_policies.h"
#include "muster/data/image_kernels.h"

namespace muster::transform {

namespace {

// How far the magnitudes of a policy reach.
struct Space {
  double shear = 0;
  double translate_x = 0;  // pixels
  double translate_y = 0;
  double degrees = 0;
  double factor = 0;  // of colours, from 1
  double bits = 0;    // that posterize takes away
};

// Of RandAugment and of AutoAugment.
Space rand_augment_space(const Tensor& images) {
  return {.shear = 0.3,
          .translate_x = 150.0 / 331.0 * as_double(images.size(-1)),
          .translate_y = 150.0 / 331.0 * as_double(images.size(-2)),
          .degrees = 30,
          .factor = 0.9,
          .bits = 4};
}

constexpr Space kWide{
    .shear = 0.99, .translate_x = 32, .translate_y = 32, .degrees = 135, .factor = 0.99, .bits = 6};

// Values from `from` to `to`, of which one is chosen.
double evenly_spaced(double from, double to, int64_t bins, int64_t which) {
  return at::linspace(from, to, bins, kFloat)[which].item<double>();
}

kernel::AffineMap sheared(const Tensor& images, double x, double y) {
  const auto degrees = [](double tangent) {
    return std::atan(tangent) * (180 / std::numbers::pi);
  };
  // About the upper left corner.
  return {.shear = {degrees(x), degrees(y)},
          .center = {-0.5 * as_double(images.size(3)), -0.5 * as_double(images.size(2))}};
}

// Moves each image by the map of its size.
template <kernel::AffineMap (*map_of)(const Tensor& images, double size)>
Tensor moved(const Tensor& images, const Numbers& sizes, const AffineOptions& options) {
  kernel::Matrices matrices =
      mapped(sizes, [&](double size) { return kernel::inverse_of(map_of(images, size)); });
  return kernel::affine(images, matrices, options);
}

// One of the changes. `magnitude`: the one of `bins` that is `which`; none: it has none.
// `is_signed`: in half of all cases it is taken away. What is not needed is not looked at.
struct Augmentation {
  double (*magnitude)(const Space& space, int64_t bins, int64_t which) = nullptr;
  bool is_signed = false;
  Tensor (*apply)(const Tensor& images,
                  const Numbers& magnitudes,
                  const AffineOptions& options) = nullptr;
};

template <double Space::* reach>
double size_within(const Space& space, int64_t bins, int64_t which) {
  return evenly_spaced(0, space.*reach, bins, which);
}

double bits_left(const Space& space, int64_t bins, int64_t which) {
  const float taken = as_float(as_double(which) / (as_double(bins - 1) / space.bits));
  return std::nearbyint(8.0F - taken);
}

double threshold_size(const Space& /*space*/, int64_t bins, int64_t which) {
  return evenly_spaced(1, 0, bins, which);
}

kernel::AffineMap shear_x(const Tensor& images, double size) {
  return sheared(images, size, 0);
}

kernel::AffineMap shear_y(const Tensor& images, double size) {
  return sheared(images, 0, size);
}

kernel::AffineMap move_x(const Tensor& /*images*/, double size) {
  return {.translate = {std::trunc(size), 0}};
}

kernel::AffineMap move_y(const Tensor& /*images*/, double size) {
  return {.translate = {0, std::trunc(size)}};
}

// A kernel of colours that takes factors.
template <Tensor (*change)(const Tensor&, const Numbers&)>
Tensor by_factors(const Tensor& images,
                  const Numbers& magnitudes,
                  const AffineOptions& /*options*/) {
  return change(images, mapped(magnitudes, [](double magnitude) { return 1 + magnitude; }));
}

template <Tensor (*change)(const Tensor&)>
Tensor without_magnitude(const Tensor& images,
                         const Numbers& /*magnitudes*/,
                         const AffineOptions& /*options*/) {
  return change(images);
}

Tensor unchanged(const Tensor& images) {
  return images;
}

Tensor posterized(const Tensor& images, const Numbers& bits, const AffineOptions& /*options*/) {
  return kernel::posterize(images, bits);
}

Tensor solarized(const Tensor& images,
                 const Numbers& magnitudes,
                 const AffineOptions& /*options*/) {
  Numbers thresholds = magnitudes;
  for (double& threshold : thresholds)
    threshold *= bound_of(images);
  return kernel::solarize(images, thresholds);
}

// By the numbers of change::Kind.
const std::array<Augmentation, 15> kAugmentations{{
    {nullptr, false, without_magnitude<unchanged>},
    {size_within<&Space::shear>, true, moved<shear_x>},
    {size_within<&Space::shear>, true, moved<shear_y>},
    {size_within<&Space::translate_x>, true, moved<move_x>},
    {size_within<&Space::translate_y>, true, moved<move_y>},
    {size_within<&Space::degrees>, true, kernel::rotate},
    {size_within<&Space::factor>, true, by_factors<kernel::brightness>},
    {size_within<&Space::factor>, true, by_factors<kernel::saturation>},
    {size_within<&Space::factor>, true, by_factors<kernel::contrast>},
    {size_within<&Space::factor>, true, by_factors<kernel::sharpness>},
    {bits_left, false, posterized},
    {threshold_size, false, solarized},
    {nullptr, false, without_magnitude<kernel::autocontrast>},
    {nullptr, false, without_magnitude<kernel::equalize>},
    {nullptr, false, without_magnitude<kernel::invert>},
}};

// What chance decides of an image.
struct Drawn {
  int64_t change = 0;  // below 0: none
  double magnitude = 0;
};

// `bin`: which of the magnitudes; below 0: a random one.
Drawn with_magnitude(
    int64_t change, const Space& space, int64_t bins, int64_t bin, Generator& rng) {
  const Augmentation& augmentation = kAugmentations[change];
  if (augmentation.magnitude == nullptr)
    return {change, 0};
  const int64_t which = bin < 0 ? rng.integer(bins) : bin;
  const double size = augmentation.magnitude(space, bins, which);
  return {change, augmentation.is_signed && rng.chance(0.5) ? -size : size};
}

Drawn drawn_change(const Space& space, int64_t bins, int64_t bin, Generator& rng) {
  return with_magnitude(rng.integer(kDrawnChanges), space, bins, bin, rng);
}

Drawn drawn_step(const PolicyStep& step, const Space& space, Generator& rng) {
  if (!rng.chance(step.probability))
    return {.change = -1};
  return with_magnitude(step.kind, space, kPolicyBins, step.bin, rng);
}

// One of a policy's pairs: the change of the first turn, and of the second.
std::array<Drawn, 2> drawn_pair(const SubPolicies& policy, const Space& space, Generator& rng) {
  const auto& [first, second] = policy[rng.integer(std::ssize(policy))];
  const Drawn drawn_first = drawn_step(first, space, rng);
  return {drawn_first, drawn_step(second, space, rng)};
}

// A change for each image, of the first turn, of the second, and so on.
using Turns = std::vector<std::vector<Drawn>>;

template <class Options>
Tensor augment_all(const Tensor& images, const Turns& turns, const Options& options) {
  const AffineOptions of_moves{.interpolation = options.interpolation, .fill = options.fill};
  return in_parts(images, [&](const Tensor& part, const auto& of_part) {
    Tensor now = part;
    for (const auto& of_all : turns) {
      const auto drawn = chosen(of_all, of_part);
      const Kinds kinds = mapped(drawn, &Drawn::change);
      now = by_kind(now, kinds, [&](int64_t kind, const Tensor& some, const auto& which) {
        const Numbers magnitudes = mapped(chosen(drawn, which), &Drawn::magnitude);
        return kAugmentations.at(kind).apply(some, magnitudes, of_moves);
      });
    }
    return now;
  });
}

void check_bins(const char* what, int bins) {
  if (bins < 2)
    refuse_transform(what, "num_magnitude_bins of 2 or more", cat(bins));
}

void check_rand_augment(const Tensor& images, const RandAugmentOptions& options) {
  const char* const what = "rand_augment";
  check_colors(what, images);
  check_bins(what, options.num_magnitude_bins);
  check_fill(what, images, options.fill);
  if (options.num_ops < 0)
    refuse_transform(what, "num_ops of 0 or more", cat(options.num_ops));
  if (options.magnitude < 0 || options.magnitude >= options.num_magnitude_bins)
    refuse_transform(what,
                     cat("a magnitude from 0 to ", options.num_magnitude_bins - 1),
                     cat(options.magnitude));
}

}  // namespace

Tensor auto_augment(const Tensor& images, RandomSource rng, const AutoAugmentOptions& options) {
  check_colors("auto_augment", images);
  check_fill("auto_augment", images, options.fill);
  const SubPolicies& policy = sub_policies(options.policy);
  const Space space = rand_augment_space(images);
  const auto pairs = drawn_for_each("auto_augment", images, rng, [&](Generator& of_image) {
    return drawn_pair(policy, space, of_image);
  });
  Turns turns(2);
  for (const auto& [first, second] : pairs) {
    turns[0].push_back(first);
    turns[1].push_back(second);
  }
  return augment_all(images, turns, options);
}

Tensor rand_augment(const Tensor& images, RandomSource rng, const RandAugmentOptions& options) {
  check_rand_augment(images, options);
  const Space space = rand_augment_space(images);
  Turns turns(options.num_ops);
  for (auto& turn : turns)
    turn = drawn_for_each("rand_augment", images, rng, [&](Generator& of_image) {
      return drawn_change(space, options.num_magnitude_bins, options.magnitude, of_image);
    });
  return augment_all(images, turns, options);
}

Tensor trivial_augment_wide(const Tensor& images,
                            RandomSource rng,
                            const TrivialAugmentOptions& options) {
  const char* const what = "trivial_augment_wide";
  check_colors(what, images);
  check_bins(what, options.num_magnitude_bins);
  check_fill(what, images, options.fill);
  const auto drawn = drawn_for_each(what, images, rng, [&](Generator& of_image) {
    return drawn_change(kWide, options.num_magnitude_bins, -1, of_image);
  });
  return augment_all(images, {drawn}, options);
}

}  // namespace muster::transform
