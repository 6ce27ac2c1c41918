// Decodes JPEG and PNG files, distinguished by their first bytes. Used by images.h; knows nothing
// of tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace muster {

struct ImageOptions {
  // Decode a JPEG at the smallest of 1/1, 1/2, 1/4 and 1/8 at which its shorter side has at least
  // this many pixels: much faster for large photos that are shrunk. (libjpeg's other scales are
  // slower than 1/1.) 0: full size. Ignored for PNGs.
  int64_t min_side = 0;
  int64_t max_pixels =
      int64_t{1} << 28;  // larger images are an error: a few bytes can claim a huge size
  // Turn a picture as its EXIF orientation says, so that it is seen as it was taken. If false it
  // stays as it is stored, as in torchvision.
  bool upright = true;
  bool narrow_16_bits =
      false;  // keep the upper 8 bits of a PNG with 16 a channel, which is else an error
};

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
};

// In pixels of the whole decoded image.
struct ImagePart {
  int64_t top = 0;
  int64_t left = 0;
  int64_t height = 0;
  int64_t width = 0;
};

// Returns the memory for `height` × `width` × 3 bytes: each pixel's red, green and blue are
// adjacent.
using PlaceForPixels = std::function<uint8_t*(int64_t height, int64_t width)>;

// Decodes the image, or a part of it, byte for byte as in the whole. Grey, palettes and CMYK become
// red, green and blue of 8 bits; transparency is dropped. Of a part of a JPEG with one scan only
// that part is decoded; the rows below it are not read, so damage there goes unnoticed. `name`
// appears in messages. Throws: invalid_argument if it is neither JPEG nor PNG, damaged, truncated,
// larger than max_pixels, or of 16 bits a channel; and for a part outside the image.
void decode_pixels(std::string_view file,
                   const std::string& name,
                   const ImageOptions& options,
                   const ImagePart* part,
                   const PlaceForPixels& place);

// The size of the decoded image, from the file's header. Throws: as decode_pixels.
ImageSize size_of_image(std::string_view file,
                        const std::string& name,
                        const ImageOptions& options);

}  // namespace muster
