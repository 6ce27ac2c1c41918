// Chooses the decoder by the file's first bytes, whatever its name says, and holds what the
// decoders of both formats share: their errors, and the checks of sizes and parts.
#include "muster/data/readers/image_codec.h"

#include <cstring>

#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/strings.h"
#include "muster/data/readers/image_formats.h"

namespace muster {

void refuse_image(const std::string& name, const std::string& got) {
  throw Error(ErrorCode::invalid_argument,
              "image: expected a whole JPEG or PNG in '",
              name,
              "', got ",
              got,
              "; replace the file, or leave it out");
}

// A small file can claim a huge picture, so decoders call this before they take memory.
void check_pixels(int64_t height,
                  int64_t width,
                  const std::string& name,
                  const ImageOptions& options) {
  // Each is below 2^31, so the product does not overflow.
  if (height * width <= options.max_pixels)
    return;
  throw Error(ErrorCode::invalid_argument,
              "image: expected at most ",
              options.max_pixels,
              " pixels in '",
              name,
              "', got ",
              width,
              "x",
              height,
              "; raise max_pixels where that is right");
}

void check_part(const ImagePart& part, const ImageSize& whole, const std::string& name) {
  const auto is_within = [](int64_t begin, int64_t count, int64_t size) {
    return begin >= 0 && count >= 1 && count <= size && begin <= size - count;
  };
  if (is_within(part.top, part.height, whole.height) &&
      is_within(part.left, part.width, whole.width))
    return;
  throw Error(ErrorCode::invalid_argument,
              "image: expected a part that lies within '",
              name,
              "' (",
              whole.width,
              "x",
              whole.height,
              "), got ",
              part.width,
              "x",
              part.height,
              " from column ",
              part.left,
              " and row ",
              part.top,
              "; look at what chooses it");
}

// Both have three bytes a pixel and rows without gaps. The part must lie within the whole.
void copy_part(const uint8_t* whole, int64_t width, const ImagePart& part, uint8_t* to) {
  const uint8_t* from = whole + 3 * (part.top * width + part.left);
  for (int64_t y = 0; y < part.height; ++y, from += 3 * width, to += 3 * part.width)
    std::memcpy(to, from, 3 * part.width);
}

namespace {

enum class ImageKind { jpeg, png };

// Throws for a file of neither kind, and shows how it begins.
ImageKind kind_of_image(std::string_view file, const std::string& name) {
  if (file.starts_with("\xff\xd8"))
    return ImageKind::jpeg;
  if (file.starts_with("\x89PNG"))
    return ImageKind::png;
  refuse_image(name,
               file.empty() ? "an empty file"
                            : cat("a file that begins with '", escaped(file.substr(0, 8)), "'"));
}

// `part` is null for the whole picture. The decoder asks `place` for memory once it knows the size.
void decode_any(std::string_view file,
                const std::string& name,
                const ImageOptions& options,
                const ImagePart* part,
                const PlaceForPixels& place) {
  const bool is_jpeg = kind_of_image(file, name) == ImageKind::jpeg;
  (is_jpeg ? decode_jpeg : decode_png)(file, name, options, part, place);
}

}  // namespace

void decode_image(std::string_view file,
                  const std::string& name,
                  const ImageOptions& options,
                  const PlaceForPixels& place) {
  decode_any(file, name, options, nullptr, place);
}

void decode_image_part(std::string_view file,
                       const std::string& name,
                       const ImageOptions& options,
                       const ImagePart& part,
                       const PlaceForPixels& place) {
  decode_any(file, name, options, &part, place);
}

ImageSize size_of_image(std::string_view file,
                        const std::string& name,
                        const ImageOptions& options) {
  const bool is_jpeg = kind_of_image(file, name) == ImageKind::jpeg;
  return (is_jpeg ? size_of_jpeg : size_of_png)(file, name, options);
}

}  // namespace muster
