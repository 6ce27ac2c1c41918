// An image that is decoded when a transform has chosen the part. Only the header is read at first.
// The pixels are channels last in memory, as in images.cc.
#include "muster/data/readers/encoded_image.h"

#include <ATen/ops/empty.h>

#include "muster/base/torch_names.h"
#include "muster/data/readers/images.h"

namespace muster {

EncodedImage::EncodedImage(std::string_view file,
                           const std::string& name,
                           const ImageOptions& options)
    : file_(file), name_(name), options_(options), size_(size_of_image(file, name, options)) {}

Tensor EncodedImage::decode() const {
  return decode_image(file_, name_, options_);
}

Tensor EncodedImage::decode(const ImagePart& part) const {
  return detail::decoded(file_, name_, options_, &part);
}

Tensor detail::decoded(std::string_view file,
                       const std::string& name,
                       const ImageOptions& options,
                       const ImagePart* part) {
  Tensor pixels;
  decode_pixels(file, name, options, part, [&](int64_t height, int64_t width) {
    pixels = at::empty({height, width, 3}, kByte);
    return pixels.mutable_data_ptr<uint8_t>();
  });
  return pixels.permute({2, 0, 1});
}

}  // namespace muster
