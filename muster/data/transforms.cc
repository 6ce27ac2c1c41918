// Transforms of single images, with torchvision's arithmetic and draws. An image is a tensor
// [channels, height, width] of uint8 or float32, or one that is still encoded, of which only the
// part that is kept is decoded. Bytes go through tables of 256 entries where that saves the
// arithmetic for each pixel. Randomness comes only from the Generator that belongs to the sample.
#include "muster/data/transforms.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <string>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/data/as_double.h"
#include "muster/data/batch_places.h"
#include "muster/data/each_image.h"
#include "muster/data/readers/encoded_image.h"

namespace muster::transform {

namespace {

constexpr double kLongestSide = 0x1p62;  // still a whole number of 64 bits

ImageSize size_of(const Tensor& image) {
  return {.height = image.size(1), .width = image.size(2)};
}
ImageSize size_of(const EncodedImage& image) {
  return {.height = image.height(), .width = image.width()};
}

std::string size_text(const ImageSize& image) {
  return cat("an image of height ", image.height, " and width ", image.width);
}

// The comparisons subtract instead of adding, so that no sum can overflow.
void check_crop(const ImageSize& image, const ImagePart& part) {
  check_image_size("crop", part.height, part.width);
  const bool lies_within = part.top >= 0 && part.left >= 0 &&
                           part.top <= image.height - part.height &&
                           part.left <= image.width - part.width;
  if (!lies_within)
    refuse_transform("crop",
                     cat(part.height,
                         "x",
                         part.width,
                         " from (",
                         part.top,
                         ", ",
                         part.left,
                         ") to lie within the image"),
                     size_text(image));
}

// An odd difference puts the middle on half a pixel, which is rounded as in torchvision.
ImagePart center_part(const ImageSize& image, int64_t height, int64_t width) {
  if (height > image.height || width > image.width)
    refuse_transform(
        "center_crop", cat("an image of at least ", height, "x", width), size_text(image));
  return {.top = rounded(as_double(image.height - height) / 2),
          .left = rounded(as_double(image.width - width) / 2),
          .height = height,
          .width = width};
}

// LibTorch keeps the colours of a pixel beside each other where the strides of all dimensions, of
// the batch's too, say so. It then need not take them apart. Floats are left out, since it gives
// other values for such a result of one column.
Tensor batch_of_one(const Tensor& image) {
  const auto one = image.unsqueeze(0);
  if (!is_bytes(image) || !one.is_contiguous(at::MemoryFormat::ChannelsLast) || one.is_contiguous())
    return one;
  return one.as_strided(one.sizes(),
                        {image.numel(), image.stride(0), image.stride(1), image.stride(2)});
}

void check_deviations(const char* what, const Doubles& deviation) {
  if (any_of(deviation, [](double value) { return !(value > 0); }))
    refuse_transform(what, "deviations above 0", join(deviation, ", "));
}

// Fills in one value a channel. A copy from the host would wait for the device.
Tensor channels_on(Device device, const Doubles& values) {
  auto tensor = at::empty({std::ssize(values), 1, 1}, at::device(device).dtype(kFloat));
  for (const int64_t c : indices_below(std::ssize(values)))
    tensor[c].fill_(values[c]);
  return tensor;
}

using Table = std::array<float, 256>;

// A table a channel says what each byte becomes; the arithmetic is that of the float path.
std::vector<Table> tables_of(const std::vector<float>& mean, const std::vector<float>& deviation) {
  std::vector<Table> tables(mean.size());
  for (const size_t c : indices_of(tables)) {
    float value = 0;
    for (float& normalized : tables[c])
      normalized = (value++ / 255.0F - mean[c]) / deviation[c];
  }
  return tables;
}

// The three colours of a pixel lie beside each other, so a row is read once.
void normalize_pixels(const Tensor& image, const std::vector<Table>& tables, float* to) {
  const int64_t height = image.size(1);
  const int64_t width = image.size(2);
  const float* const red = tables[0].data();
  const float* const green = tables[1].data();
  const float* const blue = tables[2].data();
  for (int64_t y = 0; y < height; ++y, to += width) {
    const uint8_t* pixel = image.const_data_ptr<uint8_t>() + y * image.stride(1);
    for (int64_t x = 0; x < width; ++x, pixel += 3) {
      to[x] = red[pixel[0]];
      to[height * width + x] = green[pixel[1]];
      to[2 * height * width + x] = blue[pixel[2]];
    }
  }
}

// `to` is contiguous [channels, height, width]. The image may have any strides.
void normalize_bytes(const Tensor& image, const std::vector<Table>& tables, float* to) {
  if (image.size(0) == 3 && image.stride(0) == 1 && image.stride(2) == 3)
    return normalize_pixels(image, tables, to);
  const auto* const from = image.const_data_ptr<uint8_t>();
  const int64_t height = image.size(1);
  const int64_t width = image.size(2);
  const int64_t step = image.stride(2);
  for (const int64_t c : indices_below(image.size(0))) {
    const float* const table = tables[c].data();
    for (int64_t y = 0; y < height; ++y, to += width) {
      const uint8_t* const row = from + c * image.stride(0) + y * image.stride(1);
      for (int64_t x = 0; x < width; ++x)
        to[x] = table[row[x * step]];
    }
  }
}

}  // namespace

// The result shares the image's memory: nothing is copied.
Tensor crop(const Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width) {
  check_image("crop", image);
  check_crop(size_of(image), {.top = top, .left = left, .height = height, .width = width});
  return image.narrow(1, top, height).narrow(2, left, width);
}

Tensor crop(const EncodedImage& image, int64_t top, int64_t left, int64_t height, int64_t width) {
  const ImagePart part{.top = top, .left = left, .height = height, .width = width};
  check_crop(size_of(image), part);
  return image.decode(part);
}

Tensor center_crop(const Tensor& image, int64_t height, int64_t width) {
  check_image("center_crop", image);
  const auto part = center_part(size_of(image), height, width);
  return crop(image, part.top, part.left, height, width);
}

Tensor center_crop(const EncodedImage& image, int64_t height, int64_t width) {
  const auto part = center_part(size_of(image), height, width);
  return crop(image, part.top, part.left, height, width);
}

Tensor random_crop(
    const Tensor& image, int64_t height, int64_t width, Generator& rng, int64_t padding) {
  check_image("random_crop", image);
  check_image_size("random_crop", height, width);
  check_padding("random_crop", padding, std::max(image.size(1), image.size(2)));
  // The padding is never made: only the part inside the image is copied, into zeros.
  const int64_t rows = image.size(1) + 2 * padding - height;
  const int64_t columns = image.size(2) + 2 * padding - width;
  if (rows < 0 || columns < 0)
    refuse_transform("random_crop",
                     cat("an image of at least ", height, "x", width, " with padding ", padding),
                     size_text(size_of(image)));
  const int64_t top = rng.integer(rows + 1) - padding;
  const int64_t left = rng.integer(columns + 1) - padding;
  const int64_t from_row = std::max<int64_t>(top, 0);
  const int64_t from_column = std::max<int64_t>(left, 0);
  const int64_t inside_rows = std::min(top + height, image.size(1)) - from_row;
  const int64_t inside_columns = std::min(left + width, image.size(2)) - from_column;
  if (inside_rows == height && inside_columns == width)
    return crop(image, top, left, height, width);
  auto out = at::zeros({image.size(0), height, width}, image.options());
  if (inside_rows > 0 && inside_columns > 0)
    crop(out, from_row - top, from_column - left, inside_rows, inside_columns)
        .copy_(crop(image, from_row, from_column, inside_rows, inside_columns));
  return out;
}

// An image that has the size already is returned as it is, and shares its memory.
Tensor resize(const Tensor& image, int64_t height, int64_t width, Interpolation interpolation) {
  check_image("resize", image);
  check_image_size("resize", height, width);
  if (image.numel() == 0)
    refuse_transform("resize", "an image with pixels", size_text(size_of(image)));
  if (image.size(1) == height && image.size(2) == width)
    return image;
  if (interpolation == Interpolation::nearest)
    return at::upsample_nearest2d(image.unsqueeze(0), {height, width}).squeeze(0);
  // LibTorch (2.11 to 2.15) gives wrong values, or fails, for a uint8 result of width 1, which it
  // takes for one whose colours lie beside each other.
  if (is_bytes(image) && width == 1)
    return resize(image.to(kFloat), height, width).round_().to(kByte);
  return at::_upsample_bilinear2d_aa(batch_of_one(image), {height, width}, /*align_corners=*/false)
      .squeeze(0);
}

// The longer side is cut to a whole number, not rounded, as in torchvision.
Tensor resize_shorter(const Tensor& image, int64_t side, Interpolation interpolation) {
  check_image("resize_shorter", image);
  check_image_size("resize_shorter", side, side);
  const int64_t shorter = std::max<int64_t>(std::min(image.size(1), image.size(2)), 1);
  const auto scaled = [&](int64_t extent) {
    if (extent == shorter)
      return side;
    const double longer = as_double(side) * as_double(extent) / as_double(shorter);
    check_within("resize_shorter", "longer side", longer, 0, kLongestSide);
    return static_cast<int64_t>(longer);
  };
  return resize(image, scaled(image.size(1)), scaled(image.size(2)), interpolation);
}

Tensor flip(const Tensor& image) {
  check_image("flip", image);
  return image.flip(2);
}

// Each image costs one draw, flipped or not, so later draws do not depend on the outcome.
Tensor random_flip(const Tensor& image, Generator& rng, double probability) {
  check_image("random_flip", image);
  return rng.chance(probability) ? image.flip(2) : image;
}

// Floats are taken to lie between 0 and 1 already, and are returned as they are.
Tensor to_float(const Tensor& image) {
  check_image("to_float", image);
  return is_bytes(image) ? image.to(kFloat).div_(255) : image;
}

Tensor normalize(const Tensor& image, const Doubles& mean, const Doubles& deviation) {
  check_image("normalize", image);
  const int64_t channels = image.size(0);
  if (std::ssize(mean) != channels || std::ssize(deviation) != channels)
    refuse_transform("normalize",
                     cat("a mean and a deviation for each of ", channels, " channels"),
                     cat(mean.size(), " and ", deviation.size()));
  check_deviations("normalize", deviation);
  const std::vector<float> means(mean.begin(), mean.end());
  const std::vector<float> deviations(deviation.begin(), deviation.end());
  auto out = empty_in_batch(image.sizes(), kFloat);
  if (is_bytes(image)) {
    normalize_bytes(image, tables_of(means, deviations), out.mutable_data_ptr<float>());
    return out;
  }
  for (const int64_t c : indices_below(channels))
    out[c].copy_(image[c]).sub_(means[c]).div_(deviations[c]);
  return out;
}

NormalizeOnDevice::NormalizeOnDevice(Doubles mean, Doubles deviation)
    : means_(std::move(mean)), deviations_(std::move(deviation)) {
  if (means_.size() != deviations_.size())
    refuse_transform("NormalizeOnDevice",
                     "a mean and a deviation for each channel",
                     cat(means_.size(), " and ", deviations_.size()));
  check_deviations("NormalizeOnDevice", deviations_);
}

// CUDA multiplies with the reciprocal of a number of the host, which may give other bits; so what
// it is to divide by is on the device.
void NormalizeOnDevice::move_to(Device device) {
  if (mean_.defined() && mean_.device() == device)
    return;
  largest_byte_ = at::full({}, 255, at::device(device).dtype(kFloat));
  mean_ = channels_on(device, means_);
  deviation_ = channels_on(device, deviations_);
}

Tensor NormalizeOnDevice::operator()(const Tensor& images) {
  const bool fits = images.defined() && images.dim() == 4 &&
                    (is_bytes(images) || images.scalar_type() == kFloat) &&
                    images.size(1) == std::ssize(means_);
  if (!fits)
    refuse_transform("NormalizeOnDevice",
                     cat("images [B, ", means_.size(), ", height, width] uint8 or float32"),
                     tensor_text(images));
  move_to(images.device());
  if (!is_bytes(images))
    return images.sub(mean_).div_(deviation_);
  return images.to(kFloat).div_(largest_byte_).sub_(mean_).div_(deviation_);
}

}  // namespace muster::transform
