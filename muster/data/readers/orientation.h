// How a camera was held: EXIF's orientation, and what turns stored pixels upright. Called by
// jpeg.cc and png.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "muster/data/readers/image_codec.h"

namespace muster {

// From 1 (upright) to 8, of the text of an APP1 marker. 1 also where that is no EXIF, is damaged,
// or does not say it.
int exif_orientation(std::string_view app1);

// The same of a PNG, by its chunk eXIf, which may also stand behind the pixels.
int png_orientation(std::string_view file);

// The size of the upright picture.
ImageSize upright_size(const ImageSize& stored, int orientation);

// Decodes a picture upright, or a part of it. `decode` does it as it is stored: a part where it is
// given one. Throws: as `decode`, and invalid_argument for a part outside the picture.
void decode_upright(
    const ImageSize& stored,
    int orientation,
    const std::string& name,
    const ImagePart* part,
    const PlaceForPixels& place,
    const std::function<void(const ImagePart* part, const PlaceForPixels& place)>& decode);

}  // namespace muster
