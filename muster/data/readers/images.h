// Image files: makes a tensor from a JPEG or PNG, and a dataset from a folder with a subfolder for
// each class.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/data/dataset.h"
#include "muster/data/readers/encoded_image.h"
#include "muster/data/readers/image_codec.h"

namespace muster {

// Shapes: [3, height, width] uint8, channels last in memory, as decoders write it and resize()
// (transforms.h) is fastest on; contiguous() makes the channels planes. Throws: invalid_argument as
// decode_image.
at::Tensor decode_image(std::string_view file,
                        const std::string& name,
                        const ImageOptions& options = {});
// The same for a file. Throws: also io, if it cannot be read.
at::Tensor read_image(const std::string& path, const ImageOptions& options = {});

struct ImageExample {
  at::Tensor image;
  at::Tensor label;  // int64, without dimensions
};

// How an image is changed on its way to a batch (transforms.h): a function of the decoded image, or
// of the encoded one, of which it decodes only what it keeps. Called by several threads at once.
class ImageTransform {
 public:
  ImageTransform() = default;
  // `transform`: at::Tensor(at::Tensor, Generator&) or at::Tensor(const EncodedImage&, Generator&).
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, ImageTransform>)
  ImageTransform(
      F transform) {  // NOLINT(google-explicit-constructor): options are written {.transform = f}
    if constexpr (std::is_invocable_v<F&, at::Tensor, Generator&>) {
      apply_ = [transform = std::move(transform)](const EncodedImage& image,
                                                  Generator& rng) mutable {
        return transform(image.decode(), rng);
      };
    } else {
      apply_ = std::move(transform);
    }
  }

  at::Tensor operator()(const EncodedImage& image, Generator& rng) const {
    return apply_ ? apply_(image, rng) : image.decode();
  }

 private:
  std::function<Tensor(const EncodedImage&, Generator&)> apply_;
};

struct ImageFolderOptions {
  // Without a transform images stay as they are; only images of one size can then be collated.
  ImageTransform transform{};
  ImageOptions decode{};
};

// path/<class>/…/<picture>.{jpg,jpeg,png}: classes in order of name, the images of a class in order
// of folder and name. Source: torchvision.datasets.ImageFolder, index for index. Pictures of other
// kinds (.webp, .bmp, .tif, …) are left out with a warning.
class ImageFolder : public Dataset<ImageExample> {
 public:
  // Throws: io if it is not a folder or cannot be read; invalid_argument if there is no class, a
  // class without images, or a hidden folder (.ipynb_checkpoints), which would be one.
  explicit ImageFolder(const std::string& path, const ImageFolderOptions& options = {});

  int64_t size() const override { return std::ssize(files_); }
  ImageExample get(int64_t index, Generator& rng) const override;

  const std::vector<std::string>& classes() const { return classes_; }
  const std::string& file(int64_t index) const { return files_.at(index).path; }
  // Shapes: [N] int64, for class_balanced (sample_order.h).
  at::Tensor labels() const;

 private:
  struct File {
    std::string path;
    int64_t label;
  };
  Strings classes_;
  std::vector<File> files_;
  ImageFolderOptions options_;
};

}  // namespace muster
