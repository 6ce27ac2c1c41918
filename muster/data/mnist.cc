// Reads the four IDX files of MNIST and data sets like it. Every number of a header is checked
// against the bounds and the file's length before memory is taken, so that a damaged file is
// refused by name.
#include "muster/data/mnist.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <filesystem>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/gzip.h"

namespace muster {

namespace {

constexpr int64_t kMaxSide = 4096;         // the product of all extents stays within 64 bits
constexpr uint32_t kMagicOfBytes = 0x800;  // plus the number of dimensions

constexpr FileRefusal refuse_idx{"mnist", "fetch the file again, or correct the folder"};

// Callers have checked that four bytes follow.
uint32_t big_endian(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (const size_t i : indices_below(4))
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Finds the file under any of its spellings: with - or . before idx, plain or compressed.
std::string find_file(const std::string& folder, const std::string& part, int dimensions) {
  for (const char* separator : {"-", "."})
    if (auto path = find_data_file(cat(folder, "/", part, separator, "idx", dimensions, "-ubyte")))
      return std::move(*path);
  throw Error(ErrorCode::io,
              "mnist: expected '",
              part,
              "-idx",
              dimensions,
              "-ubyte' (or with .gz) in the folder '",
              folder,
              "', got no such file; correct the folder");
}

// Reads an IDX file of bytes: two zero bytes, 8 for the type, the number of dimensions, each
// dimension big-endian, and the data, which must be exactly as long as the header says.
Tensor read_idx(const std::string& path, size_t dimensions, uint64_t max_bytes) {
  const auto bytes = read_data_file(path, max_bytes);
  if (bytes.size() < 4 || big_endian(bytes, 0) != kMagicOfBytes + dimensions) {
    refuse_idx(path,
               cat("an IDX file of bytes with ", plural(dimensions, "dimension")),
               cat("a file that begins with '", escaped(bytes.substr(0, 4)), "'"));
  }
  const size_t data_begin = 4 + 4 * dimensions;
  if (bytes.size() < data_begin)
    refuse_idx(path, "a whole IDX header", "a file cut short in it");
  Int64s shape;
  uint64_t expected = 1;
  for (const size_t i : indices_below(dimensions)) {
    const uint32_t extent = big_endian(bytes, 4 + 4 * i);
    if (i > 0 && (extent < 1 || extent > kMaxSide))
      refuse_idx(path, cat("images of 1 to ", kMaxSide, " rows and columns"), cat(extent));
    shape.push_back(extent);
    expected *= extent;  // at most 2^32 × 2^12 × 2^12
  }
  if (shape[0] == 0)
    refuse_idx(path, "at least one sample", "none");
  const uint64_t got = bytes.size() - data_begin;
  if (got != expected) {
    refuse_idx(path,
               cat(expected, " bytes of data, as its header says (", join(shape, "x"), ")"),
               cat(got, got < expected ? " (cut short)" : " (bytes after the end)"));
  }
  auto data = at::empty(shape, kByte);
  std::memcpy(data.mutable_data_ptr(), bytes.data() + data_begin, got);
  return data;
}

// Reads images and labels of one split, which must be equally many.
TensorDataset read_part(const std::string& folder,
                        const std::string& part,
                        const MnistOptions& options) {
  const auto images_path = find_file(folder, part + "-images", 3);
  const Tensor images = read_idx(images_path, 3, options.max_bytes);
  const auto labels_path = find_file(folder, part + "-labels", 1);
  const Tensor labels = read_idx(labels_path, 1, options.max_bytes).to(kLong);
  if (images.size(0) != labels.size(0)) {
    refuse_idx(labels_path,
               cat(images.size(0), " labels, one for each image of '", images_path, "'"),
               cat(labels.size(0)));
  }
  // The largest label alone decides, and argmax also says where it is.
  const auto place = labels.argmax().item<int64_t>();
  if (const auto largest = labels[place].item<int64_t>(); largest >= options.num_classes)
    refuse_idx(labels_path,
               cat("labels from 0 to ", options.num_classes - 1),
               cat(largest, " at item ", place));
  return {images.unsqueeze(1).to(kFloat).div_(255.0), labels};
}

}  // namespace

DatasetSplit read_mnist(const std::string& folder, const MnistOptions& options) {
  if (!std::filesystem::is_directory(folder)) {
    throw Error(ErrorCode::io,
                "mnist: expected a folder with the four IDX files, got '",
                folder,
                "'; give the folder that they lie in");
  }
  DatasetSplit split{read_part(folder, "train", options), read_part(folder, "t10k", options)};
  const auto sides = [](const TensorDataset& data) {
    return data.features().sizes().slice(2).vec();
  };
  if (sides(split.train) != sides(split.test)) {
    refuse_idx(folder,
               "test images of the same size as the training images",
               cat(join(sides(split.train), "x"),
                   " to train and ",
                   join(sides(split.test), "x"),
                   " to test"));
  }
  return split;
}

}  // namespace muster
