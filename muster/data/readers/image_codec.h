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

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
};

// In pixels of the whole picture as it is decoded.
struct ImagePart {
  int64_t top = 0;
  int64_t left = 0;
  int64_t height = 0;
  int64_t width = 0;
};

// Where `height` × `width` × 3 bytes go, one pixel's red, green and blue beside each other.
using PlaceForPixels = std::function<uint8_t*(int64_t height, int64_t width)>;

// Grey, palettes, CMYK and 16 bits become red, green and blue of 8 bits; transparency is left out.
// `name` is what messages call it.
// Throws: invalid_argument when it is neither, damaged, cut short, or larger than max_pixels.
void decode_image(std::string_view file, const std::string& name, const ImageOptions& options,
                  const PlaceForPixels& place);

// That part of the picture, byte for byte as it is in the whole. Of a JPEG with one scan only the part is
// decoded; its rows below are not read, and damage there is not seen.
// Throws: as decode_image; invalid_argument for a part that does not lie within the picture.
void decode_image_part(std::string_view file, const std::string& name, const ImageOptions& options,
                       const ImagePart& part, const PlaceForPixels& place);

// Of the picture as it is decoded; read from the file's header. Throws: as decode_image.
ImageSize size_of_image(std::string_view file, const std::string& name, const ImageOptions& options);

}  // namespace muster
