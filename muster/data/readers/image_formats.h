// What image_codec.cc calls: a format, a file.
#pragma once

#include "muster/data/readers/image_codec.h"

namespace muster {

[[noreturn]] void refuse_image(const std::string& name, const std::string& got);

// Throws: invalid_argument when there are more than options.max_pixels.
void check_pixels(int64_t height, int64_t width, const std::string& name, const ImageOptions& options);

void decode_jpeg(std::string_view file, const std::string& name, const ImageOptions& options,
                 const PlaceForPixels& place);
void decode_png(std::string_view file, const std::string& name, const ImageOptions& options,
                const PlaceForPixels& place);

}  // namespace muster
