// Reads the orientation out of EXIF, which is a small TIFF file: a header that names the byte
// order, and a list of entries of 12 bytes. Every read is checked against the end; a damaged EXIF
// means upright, as in other programs. The eight orientations are the ways to turn and mirror a
// picture.
#include "muster/data/readers/orientation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace muster {

namespace {

constexpr uint64_t kOrientationTag = 0x0112;
constexpr uint64_t kShortType = 3;  // the type of its value
constexpr size_t kEntryBytes = 12;

// The numbers of a file; nothing beyond its end.
struct BinaryNumbers {
  std::string_view file;
  bool is_little_endian = false;

  std::optional<uint64_t> at(size_t place, size_t bytes) const {
    if (place > file.size() || bytes > file.size() - place)
      return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      const size_t from = is_little_endian ? place + bytes - 1 - i : place + i;
      value = value << 8 | uint64_t{static_cast<uint8_t>(file[from])};
    }
    return value;
  }
};

struct Pixel {
  int64_t y = 0;
  int64_t x = 0;
};

// Where the upright picture's pixel is stored.
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

// Where a part of the upright picture is stored. Turning takes opposite corners to opposite
// corners, so two pixels give the part.
ImagePart stored_part(const ImagePart& upright, const ImageSize& stored, int orientation) {
  const Pixel a = stored_pixel({upright.top, upright.left}, stored, orientation);
  const Pixel b = stored_pixel(
      {upright.top + upright.height - 1, upright.left + upright.width - 1}, stored, orientation);
  return {.top = std::min(a.y, b.y),
          .left = std::min(a.x, b.x),
          .height = std::abs(a.y - b.y) + 1,
          .width = std::abs(a.x - b.x) + 1};
}

// Shapes: from [stored.height, stored.width, 3], to [height, width, 3] of upright_size(). They must
// not overlap, as pixels move across rows.
void turn_upright(const uint8_t* from, const ImageSize& stored, int orientation, uint8_t* to) {
  const ImageSize size = upright_size(stored, orientation);
  for (int64_t y = 0; y < size.height; ++y) {
    for (int64_t x = 0; x < size.width; ++x, to += 3) {
      const Pixel at = stored_pixel({y, x}, stored, orientation);
      std::memcpy(to, from + 3 * (at.y * stored.width + at.x), 3);
    }
  }
}

int tiff_orientation(std::string_view file) {
  const BinaryNumbers tiff{file, file.starts_with("II")};
  const uint64_t list = tiff.at(4, 4).value_or(0);
  const uint64_t entries = tiff.at(list, 2).value_or(0);
  for (uint64_t i = 0; i < entries; ++i) {
    const size_t entry = list + 2 + i * kEntryBytes;
    if (tiff.at(entry, 2) != kOrientationTag)
      continue;
    // A value this short lies in the entry itself, from its ninth byte on.
    const uint64_t value = tiff.at(entry + 8, 2).value_or(0);
    const bool is_one_of_eight = tiff.at(entry + 2, 2) == kShortType && value >= 1 && value <= 8;
    return is_one_of_eight ? static_cast<int>(value) : kUpright;
  }
  return kUpright;
}

}  // namespace

int exif_orientation(std::string_view app1) {
  constexpr std::string_view kHead("Exif\0\0", 6);
  return app1.starts_with(kHead) ? tiff_orientation(app1.substr(kHead.size())) : kUpright;
}

// Behind the signature of 8 bytes a PNG has chunks alone: 4 bytes of length, 4 of type, the data,
// and 4 to check them.
int png_orientation(std::string_view file) {
  const BinaryNumbers png{file};
  size_t at = 8;
  while (const auto bytes = png.at(at, 4)) {
    if (file.substr(at + 4).starts_with("eXIf"))
      return tiff_orientation(file.substr(at + 8, *bytes));
    at += 12 + *bytes;
  }
  return kUpright;
}

ImageSize upright_size(const ImageSize& stored, int orientation) {
  const bool swaps_rows_and_columns = orientation >= 5;
  if (swaps_rows_and_columns)
    return {.height = stored.width, .width = stored.height};
  return stored;
}

// The stored pixels go to a buffer first, since turning cannot be done in place.
void decode_upright(const StoredImage& image,
                    const std::string& name,
                    const ImagePart* part,
                    const PlaceForPixels& place) {
  const auto& [stored, orientation, decode] = image;
  if (part != nullptr)
    check_part(*part, upright_size(stored, orientation), name);
  if (orientation == kUpright)
    return decode(part, place);
  std::vector<uint8_t> pixels;
  ImageSize size;
  const auto keep = [&](int64_t height, int64_t width) {
    size = {.height = height, .width = width};
    pixels.resize(3 * height * width);
    return pixels.data();
  };
  const ImagePart stored_there =
      part == nullptr ? ImagePart() : stored_part(*part, stored, orientation);
  decode(part == nullptr ? nullptr : &stored_there, keep);
  const ImageSize upright = upright_size(size, orientation);
  turn_upright(pixels.data(), size, orientation, place(upright.height, upright.width));
}

}  // namespace muster
