// How a camera was held: EXIF's orientation, and what turns stored pixels upright. Called by
// image_codec.cc, and by the formats.
#pragma once

#include <string>
#include <string_view>

#include "muster/data/readers/image_formats.h"

namespace muster {

inline constexpr int kUpright = 1;

// From 1 (upright) to 8, of the text of an APP1 marker. 1 also where that is no EXIF, is damaged,
// or does not say it.
int exif_orientation(std::string_view app1);

// The same of a PNG, by its chunk eXIf, which may also stand behind the pixels.
int png_orientation(std::string_view file);

// The size of the upright picture.
ImageSize upright_size(const ImageSize& stored, int orientation);

// Decodes a picture upright, or a part of it. Throws: as image.decode, and invalid_argument for a
// part outside the picture.
void decode_upright(const StoredImage& image,
                    const std::string& name,
                    const ImagePart* part,
                    const PlaceForPixels& place);

}  // namespace muster
