// Reads the four IDX files of MNIST and data sets like it. Every number of a header is checked
// against the bounds and the file's length before memory is taken, so that a damaged file is
// refused by name.
#include "muster/data/mnist.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/strings.h"
#include "muster/data/gzip.h"

namespace muster {

namespace {

// The bound keeps the product of all extents within 64 bits.
constexpr int64_t kMaxSide = 4096;

// An IDX file of bytes: two zero bytes, 8 for the type, the number of dimensions, each dimension
// big-endian, and the data.
struct Idx {
  std::string path;
  std::vector<int64_t> shape;
  std::string bytes;
  size_t data_begin = 0;
};

[[noreturn]] void refuse_idx(const std::string& path,
                             const std::string& expected,
                             const std::string& got) {
  throw Error(ErrorCode::invalid_argument,
              cat("mnist: expected ",
                  expected,
                  " in '",
                  path,
                  "', got ",
                  got,
                  "; fetch the file again, or correct the folder"));
}

// Callers have checked that four bytes follow.
uint32_t big_endian(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i)
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Finds the file under any of its spellings: with - or . before idx, plain or compressed.
std::string find_file(const std::string& folder, const std::string& part, int dimensions) {
  for (const char* separator : {"-", "."}) {
    for (const char* ending : {"", ".gz"}) {
      std::string path = cat(folder, "/", part, separator, "idx", dimensions, "-ubyte", ending);
      if (std::filesystem::exists(path))
        return path;
    }
  }
  throw Error(ErrorCode::io,
              cat("mnist: expected '",
                  part,
                  "-idx",
                  dimensions,
                  "-ubyte' (or with .gz) in the folder '",
                  folder,
                  "', got no such file; correct the folder"));
}

// Returns the file with its header parsed; the data is exactly as long as the header says.
Idx read_idx(const std::string& path, size_t dimensions, uint64_t max_bytes) {
  Idx idx{.path = path,
          .shape = {},
          .bytes = read_data_file(path, max_bytes),
          .data_begin = 4 + 4 * dimensions};
  const uint32_t magic = 0x800 + dimensions;
  if (idx.bytes.size() < 4 || big_endian(idx.bytes, 0) != magic) {
    refuse_idx(
        path,
        cat("an IDX file of bytes with ", dimensions, " dimension(s)"),
        cat("a file that begins with '", escaped(std::string_view(idx.bytes).substr(0, 4)), "'"));
  }
  if (idx.bytes.size() < idx.data_begin)
    refuse_idx(path, "a whole IDX header", "a file cut short in it");
  uint64_t expected = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    const uint32_t extent = big_endian(idx.bytes, 4 + 4 * i);
    if (i > 0 && (extent < 1 || extent > kMaxSide))
      refuse_idx(path, cat("images of 1 to ", kMaxSide, " rows and columns"), cat(extent));
    idx.shape.push_back(extent);
    expected *= extent;  // at most 2^32 × 2^12 × 2^12
  }
  if (idx.shape[0] == 0)
    refuse_idx(path, "at least one sample", "none");
  const uint64_t got = idx.bytes.size() - idx.data_begin;
  if (got != expected) {
    refuse_idx(path,
               cat(expected, " bytes of data, as its header says (", join(idx.shape, "x"), ")"),
               cat(got, got < expected ? " (cut short)" : " (bytes after the end)"));
  }
  return idx;
}

// read_idx() has made sure that the data fills the shape exactly.
at::Tensor bytes_of(const Idx& idx) {
  auto tensor = at::empty(idx.shape, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(),
              idx.bytes.data() + idx.data_begin,
              idx.bytes.size() - idx.data_begin);
  return tensor;
}

// Reads images and labels of one split, which must be equally many.
TensorDataset read_part(const std::string& folder,
                        const std::string& part,
                        const MnistOptions& options) {
  const auto images = read_idx(find_file(folder, part + "-images", 3), 3, options.max_bytes);
  const auto labels = read_idx(find_file(folder, part + "-labels", 1), 1, options.max_bytes);
  if (images.shape[0] != labels.shape[0]) {
    refuse_idx(labels.path,
               cat(images.shape[0], " labels, one for each image of '", images.path, "'"),
               cat(labels.shape[0]));
  }
  const auto classes = bytes_of(labels).to(at::kLong);
  // The largest label alone decides, and argmax also says where it is.
  const auto worst = classes.argmax().item<int64_t>();
  if (const auto label = classes[worst].item<int64_t>(); label >= options.num_classes)
    refuse_idx(labels.path,
               cat("labels from 0 to ", options.num_classes - 1),
               cat(label, " at item ", worst));
  return {bytes_of(images).unsqueeze(1).to(at::kFloat).div_(255.0), classes};
}

}  // namespace

DatasetSplit read_mnist(const std::string& folder, const MnistOptions& options) {
  if (!std::filesystem::is_directory(folder)) {
    throw Error(ErrorCode::io,
                cat("mnist: expected a folder with the four IDX files, got '",
                    folder,
                    "'; give the folder that they lie in"));
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
