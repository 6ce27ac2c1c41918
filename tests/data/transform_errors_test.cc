// What transforms say to arguments that they do not take.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "muster/data/affine.h"
#include "muster/data/auto_augment.h"
#include "muster/data/blur.h"
#include "muster/data/color.h"
#include "muster/data/erasing.h"
#include "muster/data/transforms.h"
#include "tests/data/files.h"
#include "tests/data/some_pictures.h"

namespace muster {
namespace {

using test::message_of;
using test::some_bytes;
using ::testing::HasSubstr;

TEST(TransformErrors, SayWhatWasExpected) {
  namespace t = transform;
  const auto image = some_bytes("rgb", 12, 10);
  const auto floats = image.to(torch::kFloat) / 255;
  Generator rng(0, 0, 0);
  Generators two(0, 0, {0, 1});
  const auto expect = [&](const std::string& text, const std::function<void()>& call) {
    EXPECT_THAT(message_of(call), HasSubstr(text));
  };
  expect("adjust_hue: expected a shift from -0.5 to 0.5, got 0.6",
         [&] { t::adjust_hue(image, 0.6); });
  expect("adjust_contrast: expected a factor from 0", [&] { t::adjust_contrast(image, -1); });
  expect("got nan", [&] { t::adjust_brightness(image, NAN); });
  expect("1 or 3 channels, got 2", [&] { t::adjust_hue(image.slice(0, 0, 2), 0.1); });
  expect("got Byte [12, 10]", [&] { t::invert(image[0]); });
  expect("Long", [&] { t::equalize(image.to(torch::kLong)); });
  expect("an undefined tensor", [&] { t::rotate({}, 3); });
  expect("number of bits from 0 to 8, got 9", [&] { t::posterize(image, 9); });
  expect("threshold", [&] { t::solarize(floats, 1.5); });
  expect("1 or 3 channels to make, got 2", [&] { t::rgb_to_grayscale(image, 2); });
  expect("a hue of 0 or more and at most 0.5, got 0.7",
         [&] { t::color_jitter(image, rng, {.hue = 0.7}); });
  expect("a least and a most contrast of 0 or more, got 2 and 1",
         [&] { t::color_jitter(image, rng, {.contrast = {2, 1}}); });
  expect("a brightness of 0 or more, got -0.1",
         [&] { t::color_jitter(image, rng, {.brightness = -0.1}); });
  expect("a generator for each of 1 images, got 2", [&] { t::color_jitter(image, two, {}); });
  expect("a generator for each of 3 images, got 2",
         [&] { t::rand_augment(torch::stack({image, image, image}), two); });
  expect("a fill of 1 value or 3, one a channel, got 2",
         [&] { t::rotate(image, 3, {.fill = {1, 2}}); });
  expect("a fill from 0 to 255, got 300", [&] { t::rotate(image, 3, {.fill = {300}}); });
  expect("number of degrees", [&] { t::random_rotation(image, rng, {.degrees = {30, -30}}); });
  expect("scale", [&] { t::affine(image, 0, {0, 0}, 0, {0, 0}); });
  expect("shear", [&] { t::affine(image, 0, {0, 0}, 1, {90, 0}); });
  expect("translation from 0 to 1, got 2",
         [&] { t::random_affine(image, rng, {.translate = {2, 0}}); });
  expect("an odd width and height of the kernel, got 4 and 3",
         [&] { t::gaussian_blur(image, {4, 3}, {1, 1}); });
  expect("more than 12 rows and 1 columns, half of the kernel, got 12x10",
         [&] { t::gaussian_blur(image, {3, 25}, {1, 1}); });
  expect("sigma", [&] { t::random_gaussian_blur(image, rng, {.sigma = {0, 1}}); });
  expect("5x5 from (8, 0) to lie within the image", [&] { t::erase(image, 8, 0, 5, 5); });
  expect("1 value or 3, one a channel, got 2", [&] { t::erase(image, 0, 0, 5, 5, {1, 2}); });
  expect("float32 images for noise, got uint8",
         [&] { t::random_erasing(image, rng, {.noise = true}); });
  expect("a scale from 0.5 to 1, got 0.4",
         [&] { t::random_erasing(image, rng, {.scale = {0.5, 0.4}}); });
  expect("random_resized_crop: expected a scale from 0 to",
         [&] { t::random_resized_crop(image, 8, 8, rng, {.scale = {-1, 1}}); });
  expect("a ratio from 4 to", [&] { t::random_resized_crop(image, 8, 8, rng, {.ratio = {4, 3}}); });
  expect("random_resized_crop: expected a height and width of at least 1, got 0 and 10",
         [&] { t::random_resized_crop(image.slice(1, 0, 0), 8, 8, rng); });
  expect("auto_augment: expected 1 or 3 channels, got 2",
         [&] { t::auto_augment(image.slice(0, 0, 2), rng); });
  expect("auto_augment: expected a generator for each of 1 images, got 2",
         [&] { t::auto_augment(image, two); });
  expect("auto_augment: expected a fill from 0 to 255, got 300",
         [&] { t::auto_augment(image, rng, {.fill = {300}}); });
  expect("a magnitude from 0 to 30, got 31",
         [&] { t::rand_augment(image, rng, {.magnitude = 31}); });
  expect("num_ops of 0 or more, got -1", [&] { t::rand_augment(image, rng, {.num_ops = -1}); });
  expect("num_magnitude_bins of 2 or more, got 1",
         [&] { t::trivial_augment_wide(image, rng, {.num_magnitude_bins = 1}); });
  expect("[B, channels, height, width] with a generator for each, got [3, 12, 10]",
         [&] { t::random_flip(image, two); });
  expect("at least 20x20 with padding 1",
         [&] { t::random_crop(torch::stack({image, image}), 20, 20, two, 1); });
  expect("random_resized_crop: expected a generator for each of 3 images, got 2",
         [&] { t::random_resized_crop(torch::stack({image, image, image}), 8, 8, two); });
  expect("random_resized_crop: expected a height and width of at least 1, got 8 and 0",
         [&] { t::random_resized_crop(torch::stack({image, image}), 8, 0, two); });
}

// A sum of lengths that overflows would pass the checks, and be a size.
TEST(TransformErrors, LengthsThatOverflowAreRefused) {
  namespace t = transform;
  const auto image = some_bytes("rgb", 12, 10);
  const auto images = torch::stack({image, image});
  Generator rng(0, 0, 0);
  Generators two(0, 0, {0, 1});
  const int64_t huge = int64_t{1} << 62;
  for (const int64_t padding : {huge, INT64_MAX, int64_t{-1}}) {
    const auto refusal = HasSubstr("random_crop: expected a padding from 0 to 46116860184273");
    EXPECT_THAT(message_of([&] { t::random_crop(image, 8, 8, rng, padding); }), refusal);
    EXPECT_THAT(message_of([&] { t::random_crop(images, 8, 8, two, padding); }), refusal);
  }
  EXPECT_THAT(message_of([&] { t::random_crop(images, INT64_MIN, 8, two, 1); }),
              HasSubstr("a height and width of at least 1"));
  EXPECT_THAT(message_of([&] { t::resize_shorter(image, INT64_MAX); }),
              HasSubstr("resize_shorter: expected a longer side from 0 to"));
}

}  // namespace
}  // namespace muster
