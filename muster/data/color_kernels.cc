// torchvision's arithmetic of colours, operation by operation, so that its roundings are kept too.
// On the CPU an image's bytes go through tables of 256 entries, which the same operations make.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/as_double.h"
#include "muster/data/hue_pixels.h"
#include "muster/data/image_kernels.h"

namespace muster::transform::kernel {

namespace {

constexpr int64_t kByteValues = 256;

// Whole numbers are cut, not rounded.
Tensor as_images(Tensor values, const Tensor& like) {
  return values.clamp_(0, bound_of(like)).to(like.scalar_type());
}

// `table` holds what each byte becomes.
Tensor looked_up(const Tensor& images, const Tensor& table) {
  if (!images.is_non_overlapping_and_dense())
    return looked_up(images.contiguous(), table);
  auto out = at::empty_strided(images.sizes(), images.strides(), images.options());
  const auto* const entries = table.const_data_ptr<uint8_t>();
  const auto* const from = images.const_data_ptr<uint8_t>();
  auto* const to = out.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < images.numel(); ++i)
    to[i] = entries[from[i]];
  return out;
}

// For what makes of a value another one, whatever the pixel and the channel.
template <class Formula>
Tensor pointwise(const Tensor& images, const Formula& formula) {
  if (!images.is_cpu() || !is_bytes(images) || images.numel() < 4 * kByteValues)
    return formula(images);
  const auto bytes = at::arange(kByteValues, kByte).view({1, 1, 1, kByteValues});
  return looked_up(images, formula(bytes).contiguous());
}

// factor × images + (1 - factor) × others
Tensor blend(const Tensor& images, const Tensor& others, const Numbers& factors) {
  Numbers rest = factors;
  for (double& factor : rest)
    factor = 1 - factor;
  auto sum = times(images, factors);
  add_times(sum, others, rest);
  return as_images(sum, images);
}

// Of each image's grey. The sum is exact, so it does not depend on the order, nor on the number of
// threads: bytes are whole numbers, and floats are made so.
Tensor mean_of_grey(const Tensor& images) {
  constexpr double kOne = 1 << 30;
  auto values = grey(images).to(kDouble);
  if (!is_bytes(images))
    values.mul_(kOne).round_().div_(kOne);
  const double count = as_double(images.size(2) * images.size(3));
  return values.sum({1, 2, 3}, /*keepdim=*/true).div_(count).to(kFloat);
}

struct Hsv {
  Tensor hue, saturation, value;
};

// Where all channels are equal there is no hue, and no division by 0.
Hsv hsv_of(const Tensor& rgb) {
  const auto red = rgb.select(1, 0);
  const auto green = rgb.select(1, 1);
  const auto blue = rgb.select(1, 2);
  const auto least = red.minimum(green).minimum(blue);
  const auto most = red.maximum(green).maximum(blue);
  const auto is_grey = most.eq(least);
  const auto range = most - least;
  const auto ones = at::ones_like(most);
  const auto saturation = range / at::where(is_grey, ones, most);
  const auto divisor = at::where(is_grey, ones, range).unsqueeze(1);
  const auto distances = (most.unsqueeze(1) - rgb) / divisor;
  auto r = distances.select(1, 0);
  auto g = distances.select(1, 1);
  auto b = distances.select(1, 2);
  const auto is_red = most.eq(red);
  const auto is_green = most.eq(green);
  const auto of_green = r.add(2.0).sub_(b).mul_(is_green.logical_and(is_red.logical_not()));
  const auto of_red = b.sub_(g).mul_(is_red);
  const auto of_blue = g.add_(4.0).sub_(r).mul_(is_red.logical_or(is_green).logical_not_());
  auto hue = of_red.add_(of_green).add_(of_blue);
  return {hue.mul_(1.0 / 6.0).add_(1.0).frac_(), saturation, most};
}

// The six sextants of the circle take their channels from these four in turn. A full circle, which
// rounding can make, is none of those that are looked for, and so the first.
Tensor rgb_of(const Hsv& hsv) {
  const auto& value = hsv.value;
  const auto sextants = hsv.hue.mul(6);
  const auto whole = sextants.floor();
  const auto part = sextants - whole;
  auto weighted = hsv.saturation * part;
  const auto rest = hsv.saturation.neg().add_(1.0);
  const auto down = weighted.neg().add_(1.0).mul_(value).clamp_(0, 1);
  const auto up = weighted.add_(rest).mul_(value).clamp_(0, 1);
  const auto low = rest.mul(value).clamp_(0, 1);
  std::array<Tensor, 6> is_in;
  for (int64_t i = 1; i < std::ssize(is_in); ++i)
    is_in[i] = whole.eq(i);
  const auto channel = [&](const std::array<Tensor, 6>& of_sextant) {
    auto chosen = of_sextant[0];
    for (int64_t i = 1; i < std::ssize(of_sextant); ++i)
      chosen = at::where(is_in[i], of_sextant[i], chosen);
    return chosen;
  };
  return at::stack({channel({value, down, low, low, up, value}),
                    channel({up, value, value, down, low, low}),
                    channel({low, low, up, value, value, down})},
                   1);
}

// As torchvision converts them, which is not to_float().
Tensor unit_floats(const Tensor& images) {
  return is_bytes(images) ? images.to(kFloat).mul_(1.0 / 255) : images;
}

Tensor from_unit_floats(const Tensor& floats, ScalarType type) {
  return type == kByte ? floats.mul(255 + 1.0 - 1e-3).to(kByte) : floats;
}

template <class Value>
Planes<Value> planes_of(Value* values, const Tensor& image) {
  const int64_t step = image.stride(1);
  return {.red = values,
          .green = values + step,
          .blue = values + 2 * step,
          .count = image.size(2) * image.size(3),
          .step = image.stride(3)};
}

// Of one image. Its pixels must lie one after the other.
template <class Value>
Tensor hue_here(const Tensor& image, float shift) {
  const bool is_even = image.stride(2) == image.size(3) * image.stride(3);
  if (!is_even || !image.is_non_overlapping_and_dense())
    return hue_here<Value>(image.clone(at::MemoryFormat::Contiguous), shift);  // strides as well
  auto out = at::empty_strided(image.sizes(), image.strides(), image.options());
  turn_hues(planes_of(image.const_data_ptr<Value>(), image),
            planes_of(out.mutable_data_ptr<Value>(), out),
            shift);
  return out;
}

}  // namespace

Tensor grey(const Tensor& images) {
  const auto channel = [&](int64_t c) {
    return images.narrow(1, c, 1).to(kFloat);
  };
  if (images.size(1) == 1)
    return channel(0);
  auto sum = channel(0).mul(0.2989).add_(channel(1), 0.587).add_(channel(2), 0.114);
  return is_bytes(images) ? sum.floor_() : sum;
}

Tensor brightness(const Tensor& images, const Numbers& factors) {
  return pointwise(images,
                   [&](const Tensor& values) { return as_images(times(values, factors), values); });
}

Tensor contrast(const Tensor& images, const Numbers& factors) {
  const auto mean = mean_of_grey(images);
  return pointwise(images, [&](const Tensor& values) { return blend(values, mean, factors); });
}

Tensor saturation(const Tensor& images, const Numbers& factors) {
  return images.size(1) == 1 ? images : blend(images, grey(images), factors);
}

Tensor hue(const Tensor& images, const Numbers& shifts) {
  if (images.size(1) == 1 || images.numel() == 0)
    return images;
  if (images.is_cpu())
    return is_bytes(images) ? hue_here<uint8_t>(images, as_float(shifts.at(0)))
                            : hue_here<float>(images, as_float(shifts.at(0)));
  auto hsv = hsv_of(unit_floats(images));
  hsv.hue.add_(on_device_of(images, shifts).squeeze(1));
  hsv.hue.sub_(hsv.hue.floor());
  return from_unit_floats(rgb_of(hsv), images.scalar_type());
}

Tensor invert(const Tensor& images) {
  return is_bytes(images) ? images.bitwise_not() : images.neg().add_(1.0);
}

Tensor posterize(const Tensor& images, const Numbers& bits) {
  const Numbers levels = mapped(bits, [&](const double number) { return std::exp2(number); });
  const auto number_of = on_device_of(images, levels);
  if (!is_bytes(images))
    return times(images, levels).floor_().clamp_min_(0).minimum(number_of - 1).div_(number_of);
  // 256 / levels is the value of the lowest bit that stays.
  const auto mask = number_of.reciprocal().mul_(-256).add_(256).to(kByte);
  return images.bitwise_and(mask);
}

Tensor solarize(const Tensor& images, const Numbers& thresholds) {
  return pointwise(images, [&](const Tensor& values) {
    return at::where(values.ge(on_device_of(values, thresholds)), invert(values), values);
  });
}

Tensor autocontrast(const Tensor& images) {
  if (images.numel() == 0)
    return images;
  const auto planes = images.contiguous();
  const auto values = planes.to(kFloat);
  auto least = planes.amin({2, 3}, /*keepdim=*/true).to(kFloat);
  const auto most = planes.amax({2, 3}, /*keepdim=*/true).to(kFloat);
  const auto is_even = most.eq(least);
  const auto step = most.sub(least).mul_(1.0 / bound_of(images)).masked_fill_(is_even, 1);
  least.masked_fill_(is_even, 0);
  return as_images(values.sub(least).div_(step), images);
}

// Pillow's way: each value becomes the rank of the pixels below it, in steps of a 255th of all but
// the brightest. A channel with too few other pixels stays.
Tensor equalize(const Tensor& images) {
  if (images.numel() == 0)
    return images;
  const auto bytes = is_bytes(images) ? images : from_unit_floats(images, kByte);
  const auto places = bytes.flatten(2).to(kLong);
  const auto ints = places.options().dtype(kInt);
  auto counts = at::zeros({places.size(0), places.size(1), kByteValues}, ints);
  counts.scatter_add_(2, places, at::ones({1}, ints).expand_as(places));
  const auto up_to = counts.cumsum(2);
  const auto brightest = counts.gather(2, up_to.argmax(2, /*keepdim=*/true));
  const auto step = brightest.neg().add_(places.size(2)).floor_divide(255);
  const auto ranks = up_to.narrow(2, 0, kByteValues - 1)
                         .add(step.floor_divide(2))
                         .floor_divide(step.clamp_min(1))
                         .clamp_(0, 255)
                         .to(kByte);
  const auto first = at::zeros({ranks.size(0), ranks.size(1), 1}, ranks.options());
  const auto table = at::cat({first, ranks}, 2);
  const auto equal = table.gather(2, places).view(images.sizes());
  const auto changed = at::where(step.ne(0).unsqueeze(3), equal, bytes);
  return is_bytes(images) ? changed : changed.to(kFloat).mul_(1.0 / 255);
}

}  // namespace muster::transform::kernel
