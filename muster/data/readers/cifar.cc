#include "muster/data/readers/cifar.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/data/gzip.h"

namespace muster {

namespace {

constexpr int64_t kCifarSide = 32;
constexpr size_t kCifarPixels = 3 * kCifarSide * kCifarSide;
constexpr uint64_t kMaxCifarBytes = uint64_t{1} << 30;

// How a record begins: `labels` bytes, of which the one at `label` counts, below `classes`.
struct RecordKind {
  size_t labels = 1;
  size_t label = 0;
  int64_t classes = 10;
  size_t size() const { return labels + kCifarPixels; }
};

[[noreturn]] void refuse_cifar(const std::string& path, const std::string& expected, const std::string& got) {
  throw Error(ErrorCode::invalid_argument, cat("cifar: expected ", expected, " in '", path, "', got ", got,
                                               "; fetch the file again, or correct the folder"));
}

std::optional<std::string> find_cifar(const std::string& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    std::string path = cat(folder, "/", name, ending);
    if (std::filesystem::exists(path)) return path;
  }
  return std::nullopt;
}

std::string need_cifar(const std::string& folder, const std::string& name) {
  if (const auto path = find_cifar(folder, name)) return *path;
  throw Error(ErrorCode::io, cat("cifar: expected '", name, "' (or with .gz) in the folder '", folder,
                                 "', got no such file; give the folder of the binary version"));
}

std::string records_of(const std::string& path, const RecordKind& kind) {
  std::string bytes = read_data_file(path, kMaxCifarBytes);
  if (bytes.empty() || bytes.size() % kind.size() != 0)
    refuse_cifar(path, cat("records of ", kind.size(), " bytes"),
                 cat(bytes.size(), " bytes, which is ", bytes.empty() ? "none" : "no whole number of them"));
  return bytes;
}

TensorDataset read_records(const std::vector<std::string>& paths, const RecordKind& kind, bool as_bytes) {
  std::vector<std::string> files;
  int64_t count = 0;
  for (const std::string& path : paths)
    count += static_cast<int64_t>(files.emplace_back(records_of(path, kind)).size() / kind.size());
  auto pixels = at::empty({count, 3, kCifarSide, kCifarSide}, at::kByte);
  auto labels = at::empty({count}, at::kLong);
  auto* to = pixels.mutable_data_ptr<uint8_t>();
  auto* label = labels.mutable_data_ptr<int64_t>();
  for (size_t f = 0; f < files.size(); ++f) {
    for (size_t at = 0; at < files[f].size(); at += kind.size(), to += kCifarPixels) {
      const auto value = static_cast<unsigned char>(files[f][at + kind.label]);
      if (value >= kind.classes)
        refuse_cifar(paths[f], cat("labels from 0 to ", kind.classes - 1),
                     cat(static_cast<int>(value), " in record ", at / kind.size()));
      *label++ = value;
      std::memcpy(to, files[f].data() + at + kind.labels, kCifarPixels);
    }
  }
  return {as_bytes ? pixels : pixels.to(at::kFloat).div_(255.0), labels};
}

}  // namespace

DatasetSplit read_cifar10(const std::string& folder, const CifarOptions& options) {
  std::vector<std::string> train{need_cifar(folder, "data_batch_1.bin")};
  for (int batch = 2; batch <= 5; ++batch)
    if (const auto path = find_cifar(folder, cat("data_batch_", batch, ".bin"))) train.push_back(*path);
  const RecordKind kind;
  return {read_records(train, kind, options.bytes),
          read_records({need_cifar(folder, "test_batch.bin")}, kind, options.bytes)};
}

DatasetSplit read_cifar100(const std::string& folder, const CifarOptions& options) {
  const RecordKind kind{
      .labels = 2, .label = options.coarse_labels ? 0U : 1U, .classes = options.coarse_labels ? 20 : 100};
  return {read_records({need_cifar(folder, "train.bin")}, kind, options.bytes),
          read_records({need_cifar(folder, "test.bin")}, kind, options.bytes)};
}

}  // namespace muster
