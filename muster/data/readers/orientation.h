// How a camera was held: EXIF's orientation, and what turns stored pixels upright. Called by
// jpeg.cc.
#pragma once

#include <cstdint>
#include <string_view>

#include "muster/data/readers/image_codec.h"

namespace muster {

// From 1 (upright) to 8. 1 also where the text of an APP1 marker is no EXIF, damaged, or does not
// say it.
int exif_orientation(std::string_view app1);

// The size of the upright picture.
ImageSize upright_size(const ImageSize& stored, int orientation);

// Where a part of the upright picture is stored.
ImagePart stored_part(const ImagePart& upright, const ImageSize& stored, int orientation);

// Shapes: from [stored.height, stored.width, 3], to [height, width, 3] of upright_size().
void turn_upright(const uint8_t* from, const ImageSize& stored, int orientation, uint8_t* to);

}  // namespace muster
