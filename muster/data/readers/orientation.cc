// Reads the orientation out of a JPEG's EXIF, which is a small TIFF file: a header that names the
// byte order, and a list of entries of 12 bytes. Every read is checked against the end; a damaged
// EXIF means upright, as in other programs. The eight orientations are the ways to turn and mirror
// a picture.
#include "muster/data/readers/orientation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace muster {

namespace {

constexpr uint64_t kOrientationTag = 0x0112;
constexpr uint64_t kShort = 3;  // the type of its value
constexpr size_t kEntryBytes = 12;

// The numbers of a TIFF header, of either byte order; nothing beyond the end.
class TiffNumbers {
 public:
  explicit TiffNumbers(std::string_view text) : text_(text), is_little_(text.starts_with("II")) {}

  std::optional<uint64_t> at(size_t place, size_t bytes) const {
    if (place > text_.size() || bytes > text_.size() - place)
      return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      const size_t from = is_little_ ? place + bytes - 1 - i : place + i;
      value = value << 8 | uint64_t{static_cast<uint8_t>(text_[from])};
    }
    return value;
  }

 private:
  std::string_view text_;
  bool is_little_;
};

struct Pixel {
  int64_t y = 0;
  int64_t x = 0;
};

// Says where the upright picture's pixel is stored.
Pixel stored_pixel(Pixel at, const ImageSize& stored, int orientation) {
  const int64_t bottom = stored.height - 1, right = stored.width - 1;
  switch (orientation) {
    case 2:
      return {at.y, right - at.x};
    case 3:
      return {bottom - at.y, right - at.x};
    case 4:
      return {bottom - at.y, at.x};
    case 5:
      return {at.x, at.y};
    case 6:
      return {bottom - at.x, at.y};
    case 7:
      return {bottom - at.x, right - at.y};
    case 8:
      return {at.x, right - at.y};
    default:
      return at;
  }
}

// Orientations from 5 on swap rows and columns.
bool lies_on_its_side(int orientation) {
  return orientation >= 5;
}

}  // namespace

int exif_orientation(std::string_view app1) {
  constexpr std::string_view kHead("Exif\0\0", 6);
  if (!app1.starts_with(kHead))
    return 1;
  const TiffNumbers tiff(app1.substr(kHead.size()));
  const uint64_t list = tiff.at(4, 4).value_or(0);
  const uint64_t entries = tiff.at(list, 2).value_or(0);
  for (uint64_t i = 0; i < entries; ++i) {
    const size_t entry = list + 2 + i * kEntryBytes;
    if (tiff.at(entry, 2) != kOrientationTag)
      continue;
    if (tiff.at(entry + 2, 2) != kShort)
      return 1;
    // A value this short lies in the entry itself, from its ninth byte on.
    const uint64_t value = tiff.at(entry + 8, 2).value_or(1);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

ImageSize upright_size(const ImageSize& stored, int orientation) {
  if (!lies_on_its_side(orientation))
    return stored;
  return {.height = stored.width, .width = stored.height};
}

// Turning takes opposite corners to opposite corners, so two pixels give the part.
ImagePart stored_part(const ImagePart& upright, const ImageSize& stored, int orientation) {
  const Pixel a = stored_pixel({upright.top, upright.left}, stored, orientation);
  const Pixel b = stored_pixel(
      {upright.top + upright.height - 1, upright.left + upright.width - 1}, stored, orientation);
  return {.top = std::min(a.y, b.y),
          .left = std::min(a.x, b.x),
          .height = std::abs(a.y - b.y) + 1,
          .width = std::abs(a.x - b.x) + 1};
}

// `from` and `to` must not overlap, as pixels move across rows.
void turn_upright(const uint8_t* from, const ImageSize& stored, int orientation, uint8_t* to) {
  const ImageSize size = upright_size(stored, orientation);
  for (int64_t y = 0; y < size.height; ++y) {
    for (int64_t x = 0; x < size.width; ++x, to += 3) {
      const Pixel at = stored_pixel({y, x}, stored, orientation);
      std::memcpy(to, from + 3 * (at.y * stored.width + at.x), 3);
    }
  }
}

}  // namespace muster
