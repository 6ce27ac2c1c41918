#include "muster/data/readers/image_codec.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/data/gzip.h"
#include "muster/data/readers/image_formats.h"

namespace muster {

void refuse_image(const std::string& name, const std::string& got) {
  throw Error(ErrorCode::invalid_argument, cat("image: expected a whole JPEG or PNG in '", name, "', got ",
                                               got, "; replace the file, or leave it out"));
}

void check_pixels(int64_t height, int64_t width, const std::string& name, const ImageOptions& options) {
  if (height * width <= options.max_pixels) return;  // each is below 2^31
  throw Error(ErrorCode::invalid_argument,
              cat("image: expected at most ", options.max_pixels, " pixels in '", name, "', got ", width, "x",
                  height, "; raise max_pixels where that is right"));
}

void decode_image(std::string_view file, const std::string& name, const ImageOptions& options,
                  const PlaceForPixels& place) {
  if (file.starts_with("\xff\xd8")) return decode_jpeg(file, name, options, place);
  if (file.starts_with("\x89PNG")) return decode_png(file, name, options, place);
  refuse_image(
      name, file.empty() ? "an empty file" : cat("a file that begins with '", shown(file.substr(0, 8)), "'"));
}

}  // namespace muster
