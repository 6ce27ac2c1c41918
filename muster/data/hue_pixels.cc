// Hues on the CPU, a pixel at a time: LibTorch has some fifty passes over an image for it, of which
// those that choose by a mask are slow. The roundings are those of its operations, so each product
// and each sum is rounded by itself (CMakeLists.txt says so to the compiler).
#include "muster/data/hue_pixels.h"

#include <algorithm>

#include "muster/data/as_double.h"

namespace muster::transform::kernel {

namespace {

struct Pixel {
  float red, green, blue;
};

float within_unit(float value) {
  return std::clamp(value, 0.0F, 1.0F);
}

// From 0, below 1: red is 0, and green a third.
float hue_of(const Pixel& pixel, float most, float range) {
  const float red = (most - pixel.red) / range;
  const float green = (most - pixel.green) / range;
  const float blue = (most - pixel.blue) / range;
  float sextants = green + 4.0F - red;
  if (most == pixel.red)
    sextants = blue - green;
  else if (most == pixel.green)
    sextants = red + 2.0F - blue;
  // Above 0, and below 2.
  const float turns = sextants * (1.0F / 6) + 1.0F;
  return turns >= 1 ? turns - 1 : turns;
}

float turned(float hue, float shift) {
  const float sum = hue + shift;
  if (sum < 0)
    return sum + 1;
  return sum >= 1 ? sum - 1 : sum;
}

Pixel pixel_of(float hue, float saturation, float most) {
  const float sextants = hue * 6.0F;
  const int whole = static_cast<int>(sextants);
  const float part = sextants - as_float(whole);
  const float weighted = saturation * part;
  const float rest = 1.0F - saturation;
  const float down = within_unit((1.0F - weighted) * most);
  const float up = within_unit((weighted + rest) * most);
  const float low = within_unit(rest * most);
  switch (whole) {
    case 1:
      return {down, most, low};
    case 2:
      return {low, most, up};
    case 3:
      return {low, down, most};
    case 4:
      return {up, low, most};
    case 5:
      return {most, low, down};
    default:  // rounding can make a full circle
      return {most, up, low};
  }
}

Pixel with_hue_turned(const Pixel& pixel, float shift) {
  const float least = std::min({pixel.red, pixel.green, pixel.blue});
  const float most = std::max({pixel.red, pixel.green, pixel.blue});
  const bool is_grey = most == least;
  const float range = most - least;
  const float saturation = range / (is_grey ? 1.0F : most);
  const float hue = hue_of(pixel, most, is_grey ? 1.0F : range);
  return pixel_of(turned(hue, shift), saturation, most);
}

// Bytes become floats and floats bytes as in torchvision.
float unit_float(uint8_t byte) {
  return as_float(byte) * as_float(1.0 / 255);
}

uint8_t byte_of(float value) {
  return static_cast<uint8_t>(value * as_float(255 + 1.0 - 1e-3));
}

}  // namespace

void turn_hues(const Planes<const float>& from, const Planes<float>& to, float shift) {
  for (int64_t i = 0; i < from.count; ++i) {
    const int64_t at = i * from.step;
    const Pixel pixel = with_hue_turned({from.red[at], from.green[at], from.blue[at]}, shift);
    to.red[at] = pixel.red;
    to.green[at] = pixel.green;
    to.blue[at] = pixel.blue;
  }
}

void turn_hues(const Planes<const uint8_t>& from, const Planes<uint8_t>& to, float shift) {
  for (int64_t i = 0; i < from.count; ++i) {
    const int64_t at = i * from.step;
    const Pixel pixel = with_hue_turned(
        {unit_float(from.red[at]), unit_float(from.green[at]), unit_float(from.blue[at])}, shift);
    to.red[at] = byte_of(pixel.red);
    to.green[at] = byte_of(pixel.green);
    to.blue[at] = byte_of(pixel.blue);
  }
}

}  // namespace muster::transform::kernel
