// How transforms reach the images of a batch. On the CPU they take one image after the other, which
// stays in the cache. On a device they take all at once, since each call costs more there than an
// image. Either way an image's result depends on that image and its numbers alone.
//
// For the transforms' own sources. `what` names the transform in errors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/generators.h"

namespace muster::transform {

[[noreturn]] void refuse_transform(const char* what,
                                   const std::string& expected,
                                   const std::string& got);

inline bool is_bytes(const Tensor& images) {
  return images.scalar_type() == kByte;
}
// The largest value: bytes reach from 0 to 255, floats from 0 to 1.
inline double bound_of(const Tensor& images) {
  return is_bytes(images) ? 255 : 1;
}

// [channels, height, width], uint8 or float32, on the CPU.
void check_image(const char* what, const Tensor& image);
// [channels, height, width] or [B, channels, height, width], uint8 or float32, on any device.
void check_images(const char* what, const Tensor& images);
// Also of 1 or 3 channels.
void check_colors(const char* what, const Tensor& images);
using Range = std::pair<double, double>;  // the least and the most

// The largest number that a float holds.
inline constexpr double kMostNumber = std::numeric_limits<float>::max();
// A number from `least` to `most`, and no NaN.
void check_within(const char* what,
                  const char* name,
                  double value,
                  double least = -kMostNumber,
                  double most = kMostNumber);
// The same of both ends of a range, the first of which must not be above the second.
void check_range(const char* what,
                 const char* name,
                 Range range,
                 double least = -kMostNumber,
                 double most = kMostNumber);
// What an image is to have.
void check_image_size(const char* what, int64_t height, int64_t width);
// On both ends of a side, which must not become longer than there are numbers.
void check_padding(const char* what, int64_t padding, int64_t side);
// No value, one, or one a channel.
void check_fill(const char* what, const Tensor& images, const Doubles& fill);
// A batch [B, channels, height, width], with a generator for each image.
void check_batch(const char* what, const Tensor& images, const Generators& rngs);
// As many generators as images.
void check_generators(const char* what, const Tensor& images, const Generators& rngs);

int64_t images_of(const Tensor& images);

// Calls `draw` with one generator for all images, or with that of each; returns a value an image.
template <class Draw>
auto drawn_for_each(const char* what,
                    const Tensor& images,
                    const RandomSource& source,
                    const Draw& draw) {
  if (source.one != nullptr)
    return std::vector(images_of(images), draw(*source.one));
  check_generators(what, images, *source.each);
  return mapped_indices(images_of(images), [&](int64_t i) { return draw((*source.each)[i]); });
}

// A number for each image of a part.
using Numbers = Doubles;
// Shapes: [N, 1, 1, 1] float32 on the device of `like`. Does not wait for the device.
Tensor on_device_of(const Tensor& like, const Numbers& numbers);
// float(images) × number, as a multiplication with a number of the host.
Tensor times(const Tensor& images, const Numbers& numbers);
// sum += number × values, rounded once, as torch's add(alpha) on the CPU.
void add_times(Tensor& sum, const Tensor& values, const Numbers& numbers);

// Some images of a batch [N, channels, height, width], and which of the batch they are.
using Part = std::function<Tensor(const Tensor& images, const Int64s& which)>;
// Calls `change` with every image alone on the CPU, and with all at once elsewhere; joins what it
// returns. Shapes: the result has as many dimensions as `images`.
Tensor in_parts(const Tensor& images, const Part& change);

// Calls `change` once for each kind that there is, with the images of that kind; those of a kind
// below 0 stay. Shapes: images [N, channels, height, width]; each result as its argument.
using Kinds = Int64s;
using PartOfKind = std::function<Tensor(int64_t kind, const Tensor& images, const Int64s& which)>;
Tensor by_kind(const Tensor& images, const Kinds& kinds, const PartOfKind& change);
// Calls `change` with the images that chance chooses; each costs one draw of its own generator.
Tensor by_chance(const Tensor& images,
                 Generators& rngs,
                 double probability,
                 Tensor (*change)(const Tensor& images));

// The numbers of these.
template <class T>
std::vector<T> chosen(const std::vector<T>& of_all, const Int64s& which) {
  return mapped(which, [&](const int64_t i) { return of_all.at(i); });
}

}  // namespace muster::transform
