// Pixels out of JPEG and PNG files, which are told apart by their first bytes. Used by images.h; knows no
// tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace muster {

struct ImageOptions {
  // Decode a JPEG at the smallest of 1/1, 1/2, 1/4 and 1/8 at which its shorter side has at least this many
  // pixels: much faster for large photos that are made small. (libjpeg's other scales are slower than 1/1.)
  // 0: as it is. Says nothing of PNGs.
  int64_t min_side = 0;
  int64_t max_pixels = int64_t{1} << 28;  // a larger image is an error: few bytes can say they are huge
};

// Where `height` × `width` × 3 bytes go, one pixel's red, green and blue beside each other.
using PlaceForPixels = std::function<uint8_t*(int64_t height, int64_t width)>;

// Grey, palettes, CMYK and 16 bits become red, green and blue of 8 bits; transparency is left out.
// `name` is what messages call it.
// Throws: invalid_argument when it is neither, damaged, cut short, or larger than max_pixels.
void decode_image(std::string_view file, const std::string& name, const ImageOptions& options,
                  const PlaceForPixels& place);

}  // namespace muster
