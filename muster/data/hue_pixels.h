// Turns the hues of an image in the host's memory (hue_pixels.cc). It knows no tensors.
#pragma once

#include <cstdint>

namespace muster::transform::kernel {

// The channels of `count` pixels, each `step` after the one before.
template <class Value>
struct Planes {
  Value* red = nullptr;
  Value* green = nullptr;
  Value* blue = nullptr;
  int64_t count = 0;
  int64_t step = 1;
};

// By `shift` circles, from -0.5 to 0.5. Source: torchvision.transforms.v2.functional.adjust_hue.
void turn_hues(const Planes<const float>& from, const Planes<float>& to, float shift);
void turn_hues(const Planes<const uint8_t>& from, const Planes<uint8_t>& to, float shift);

}  // namespace muster::transform::kernel
