// How a transform finds the value of a place between pixels.
#pragma once

namespace muster::transform {

// `nearest` makes no value that the image does not have: for masks, whose pixels are classes.
enum class Interpolation { nearest, bilinear };

}  // namespace muster::transform
