// Checks of images, parts of batches, and arithmetic with a number for each image. A device gets
// such numbers through page-locked memory, so that nothing waits for it.
#include "muster/data/each_image.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <set>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"

namespace muster::transform {

namespace {

// From the host to the device of `like`.
template <class T>
Tensor sent(const Tensor& like, const std::vector<T>& values, ScalarType type) {
  const auto here = at::tensor(values, at::dtype(type));
  return like.is_cpu() ? here : here.pin_memory().to(like.device(), /*non_blocking=*/true);
}

Int64s of_kind(const Kinds& kinds, int64_t kind) {
  return filtered_indices<int64_t>(std::ssize(kinds), [&](int64_t i) { return kinds[i] == kind; });
}

}  // namespace

[[noreturn]] void refuse_transform(const char* what,
                                   const std::string& expected,
                                   const std::string& got) {
  throw invalid_argument("transform: ",
                         what,
                         ": expected ",
                         expected,
                         ", got ",
                         got,
                         "; look at what comes before it");
}

void check_image(const char* what, const Tensor& image) {
  if (image.defined() && image.dim() == 3 && image.is_cpu() &&
      (image.scalar_type() == kByte || image.scalar_type() == kFloat))
    return;
  refuse_transform(
      what,
      "an image [channels, height, width], uint8 or float32 on the CPU",
      image.defined() ? cat(tensor_text(image), " on ", image.device().str()) : tensor_text(image));
}

void check_images(const char* what, const Tensor& images) {
  if (images.defined() && (images.dim() == 3 || images.dim() == 4) &&
      (images.scalar_type() == kByte || images.scalar_type() == kFloat))
    return;
  refuse_transform(what,
                   "images [channels, height, width] or [B, channels, height, width], uint8 or "
                   "float32",
                   tensor_text(images));
}

void check_colors(const char* what, const Tensor& images) {
  check_images(what, images);
  const int64_t channels = images.size(-3);
  if (channels != 1 && channels != 3)
    refuse_transform(what, "1 or 3 channels", cat(channels));
}

// The negated comparison refuses NaN too.
void check_within(const char* what, const char* name, double value, double least, double most) {
  if (!(value >= least && value <= most))
    refuse_transform(what, cat("a ", name, " from ", least, " to ", most), cat(value));
}

void check_range(const char* what, const char* name, Range range, double least, double most) {
  check_within(what, name, range.first, least, most);
  check_within(what, name, range.second, range.first, most);
}

void check_image_size(const char* what, int64_t height, int64_t width) {
  if (height < 1 || width < 1)
    refuse_transform(what, "a height and width of at least 1", cat(height, " and ", width));
}

// The subtraction cannot overflow.
void check_padding(const char* what, int64_t padding, int64_t side) {
  const int64_t most = (INT64_MAX - side) / 2;
  if (padding < 0 || padding > most)
    refuse_transform(what, cat("a padding from 0 to ", most), cat(padding));
}

void check_generators(const char* what, const Tensor& images, const Generators& rngs) {
  if (rngs.size() != images_of(images))
    refuse_transform(
        what, cat("a generator for each of ", images_of(images), " images"), cat(rngs.size()));
}

void check_batch(const char* what, const Tensor& images, const Generators& rngs) {
  check_images(what, images);
  if (images.dim() != 4)
    refuse_transform(what,
                     "images [B, channels, height, width] with a generator for each",
                     cat("[", sizes_text(images), "]"));
  check_generators(what, images, rngs);
}

void check_fill(const char* what, const Tensor& images, const Doubles& fill) {
  const int64_t channels = images.size(-3);
  const int64_t count = std::ssize(fill);
  if (count > 1 && count != channels)
    refuse_transform(what, cat("a fill of 1 value or ", channels, ", one a channel"), cat(count));
  const bool bytes = is_bytes(images);
  for (const double value : fill)
    check_within(what, "fill", value, bytes ? 0 : -kMostNumber, bytes ? 255 : kMostNumber);
}

int64_t images_of(const Tensor& images) {
  return images.dim() == 4 ? images.size(0) : 1;
}

Tensor on_device_of(const Tensor& like, const Numbers& numbers) {
  return sent(like, numbers, kFloat).view({-1, 1, 1, 1});
}

Tensor times(const Tensor& images, const Numbers& numbers) {
  const auto values = images.to(kFloat);
  return images.is_cpu() ? values.mul(numbers.at(0)) : values.mul(on_device_of(images, numbers));
}

// A product of two floats is exact in double, so that the sum alone is rounded.
void add_times(Tensor& sum, const Tensor& values, const Numbers& numbers) {
  if (sum.is_cpu()) {
    sum.add_(values, numbers.at(0));
    return;
  }
  const auto factors = on_device_of(sum, numbers).to(kDouble);
  sum.copy_(values.to(kDouble).mul(factors).add(sum));
}

// LibTorch's sums of floats have another last bit where the values do not lie beside each other.
Tensor in_parts(const Tensor& images, const Part& change) {
  if (images.is_cpu() && !is_bytes(images) && !images.is_contiguous())
    return in_parts(images.contiguous(), change);
  if (images.dim() == 3)
    return change(images.unsqueeze(0), {0}).squeeze(0);
  const int64_t count = images.size(0);
  if (count == 0)
    return images;
  if (!images.is_cpu())
    return change(images, mapped_indices(count, std::identity()));
  Tensors changed =
      mapped_indices(count, [&](int64_t i) { return change(images.narrow(0, i, 1), {i}); });
  return at::cat(changed);
}

Tensor by_kind(const Tensor& images, const Kinds& kinds, const PartOfKind& change) {
  const auto all_are = [&](int64_t kind) {
    return all_of(kinds, [&](int64_t of) { return of == kind; });
  };
  if (all_are(kinds.at(0)))
    return kinds[0] < 0
               ? images
               : change(kinds[0], images, mapped_indices(std::ssize(kinds), std::identity()));
  auto out = images.clone();
  for (const int64_t kind : std::set<int64_t>(kinds.begin(), kinds.end())) {
    if (kind < 0)
      continue;
    const auto which = of_kind(kinds, kind);
    const auto index = sent(images, which, kLong);
    out.index_copy_(0, index, change(kind, images.index_select(0, index), which));
  }
  return out;
}

Tensor by_chance(const Tensor& images,
                 Generators& rngs,
                 double probability,
                 Tensor (*change)(const Tensor& images)) {
  const Kinds kinds = mapped_indices(
      rngs.size(), [&](int64_t i) -> int64_t { return rngs[i].chance(probability) ? 0 : -1; });
  return in_parts(images, [&](const Tensor& part, const auto& which) {
    return by_kind(part, chosen(kinds, which), [&](int64_t, const Tensor& some, const auto&) {
      return change(some);
    });
  });
}

}  // namespace muster::transform
