// An image that is still encoded. Transforms that keep only a part of it (transforms.h) decode only
// that part, which for a JPEG takes two thirds of the time. Used by images.h and with the samples
// of web_shards.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "muster/base/tensors.h"
#include "muster/data/readers/image_codec.h"

namespace muster {

class EncodedImage {
 public:
  // `file` must outlive this; `name` appears in messages.
  // Throws: as decode_image (images.h), for what the header says.
  EncodedImage(std::string_view file, const std::string& name, const ImageOptions& options = {});

  int64_t height() const { return size_.height; }
  int64_t width() const { return size_.width; }

  // Shapes: [3, height, width] uint8, channels last in memory, as decode_image. Throws: as that.
  Tensor decode() const;
  // The same pixels as that part of decode(). The JPEG's rows below it are not read, so damage
  // there goes unnoticed.
  Tensor decode(const ImagePart& part) const;

 private:
  std::string_view file_;
  std::string name_;
  ImageOptions options_;
  ImageSize size_;
};

namespace detail {
// The whole image, or a part of it. Shapes, Throws: as EncodedImage::decode.
Tensor decoded(std::string_view file,
               const std::string& name,
               const ImageOptions& options,
               const ImagePart* part);
}  // namespace detail

}  // namespace muster
