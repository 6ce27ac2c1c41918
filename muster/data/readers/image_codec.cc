// Chooses the decoder by the file's first bytes, whatever its name says, and holds what the
// decoders of both formats share: their errors, and the checks of sizes and parts.
#include "muster/data/readers/image_codec.h"

#include <cstring>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/strings.h"
#include "muster/data/readers/image_formats.h"
#include "muster/data/readers/orientation.h"

namespace muster {

void refuse_image(const std::string& name, const std::string& got) {
  throw invalid_argument("image: expected a whole JPEG or PNG in '",
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
  throw invalid_argument("image: expected at most ",
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
  throw invalid_argument("image: expected a part that lies within '",
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

void decode_whole(const ImageSize& size,
                  const ImagePart* part,
                  const PlaceForPixels& place,
                  const std::function<void(uint8_t* pixels)>& decode) {
  if (part == nullptr)
    return decode(place(size.height, size.width));
  std::vector<uint8_t> whole(3 * size.height * size.width);
  decode(whole.data());
  const uint8_t* from = whole.data() + 3 * (part->top * size.width + part->left);
  uint8_t* to = place(part->height, part->width);
  for (int64_t y = 0; y < part->height; ++y, from += 3 * size.width, to += 3 * part->width)
    std::memcpy(to, from, 3 * part->width);
}

namespace {

// Throws for a file of neither kind, and shows how it begins.
StoredImage open_image(std::string_view file,
                       const std::string& name,
                       const ImageOptions& options) {
  const bool is_jpeg = file.starts_with("\xff\xd8");
  if (!is_jpeg && !file.starts_with("\x89PNG")) {
    refuse_image(name,
                 file.empty() ? "an empty file"
                              : cat("a file that begins with '", escaped(file.substr(0, 8)), "'"));
  }
  StoredImage image = (is_jpeg ? open_jpeg : open_png)(file, name, options);
  if (!options.upright)
    image.orientation = kUpright;
  return image;
}

}  // namespace

void decode_pixels(std::string_view file,
                   const std::string& name,
                   const ImageOptions& options,
                   const ImagePart* part,
                   const PlaceForPixels& place) {
  decode_upright(open_image(file, name, options), name, part, place);
}

ImageSize size_of_image(std::string_view file,
                        const std::string& name,
                        const ImageOptions& options) {
  const StoredImage image = open_image(file, name, options);
  return upright_size(image.size, image.orientation);
}

}  // namespace muster
