// What image_codec.cc calls: a format, a file.
#pragma once

#include <cstdint>
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

// The pixels of `part`, or all where there is none.
void decode_jpeg(std::string_view file,
                 const std::string& name,
                 const ImageOptions& options,
                 const ImagePart* part,
                 const PlaceForPixels& place);
void decode_png(std::string_view file,
                const std::string& name,
                const ImageOptions& options,
                const ImagePart* part,
                const PlaceForPixels& place);

ImageSize size_of_jpeg(std::string_view file, const std::string& name, const ImageOptions& options);
ImageSize size_of_png(std::string_view file, const std::string& name, const ImageOptions& options);

// Throws: invalid_argument when `part` does not lie within the picture.
void check_part(const ImagePart& part, const ImageSize& whole, const std::string& name);
// `whole` has rows of `width` pixels.
void copy_part(const uint8_t* whole, int64_t width, const ImagePart& part, uint8_t* to);

}  // namespace muster
