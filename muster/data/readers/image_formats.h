// What image_codec.cc calls: a format, a file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "muster/data/readers/image_codec.h"

namespace muster {

[[noreturn]] void refuse_image(const std::string& name, const std::string& got);

// Throws: invalid_argument when there are more than options.max_pixels.
void check_pixels(int64_t height,
                  int64_t width,
                  const std::string& name,
                  const ImageOptions& options);

// A picture as its file has it: what the header says, and what decodes it, or a part of it where
// there is one. The file's text must last as long.
struct StoredImage {
  ImageSize size;   // after scaling
  int orientation;  // EXIF's
  std::function<void(const ImagePart* part, const PlaceForPixels& place)> decode;
};

// They read the header, and decode no pixel.
StoredImage open_jpeg(std::string_view file, const std::string& name, const ImageOptions& options);
StoredImage open_png(std::string_view file, const std::string& name, const ImageOptions& options);

// Throws: invalid_argument when `part` does not lie within the picture.
void check_part(const ImagePart& part, const ImageSize& whole, const std::string& name);

// For a part that a format cannot decode alone: `decode` fills the memory that it gets with the
// whole picture, of which `place` gets the part, or all where there is none.
void decode_whole(const ImageSize& size,
                  const ImagePart* part,
                  const PlaceForPixels& place,
                  const std::function<void(uint8_t* pixels)>& decode);

}  // namespace muster
