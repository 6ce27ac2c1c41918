// Reads the binary version of CIFAR: finds the files, plain or compressed, and reads the records of
// all of them into one tensor. cifar_records.cc knows the records.
#include "muster/data/readers/cifar.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/data/gzip.h"
#include "muster/data/readers/cifar_records.h"

namespace muster {

namespace {

constexpr uint64_t kMaxCifarBytes = uint64_t{1} << 30;

// Returns the path, or refuses the folder that lacks the file.
std::string need_cifar(const std::string& folder, const std::string& name) {
  if (const auto path = find_data_file(cat(folder, "/", name)))
    return *path;
  throw Error(ErrorCode::io,
              "cifar: expected '",
              name,
              "' (or with .gz) in the folder '",
              folder,
              "', got no such file; give the folder of the binary version");
}

// All files are counted before memory is taken, so that the tensors are made in their whole size.
TensorDataset read_files(const Strings& paths, const CifarKind& kind, bool as_bytes) {
  Strings files;
  Int64s counts;
  for (const auto& path : paths) {
    const std::string& bytes = files.emplace_back(read_data_file(path, kMaxCifarBytes));
    counts.push_back(count_cifar_records(bytes, kind, path));
  }
  const int64_t total = sum_of(counts);
  auto pixels = at::empty({total, 3, kCifarSide, kCifarSide}, kByte);
  auto labels = at::empty({total}, kLong);
  auto* to = pixels.mutable_data_ptr<uint8_t>();
  auto* label = labels.mutable_data_ptr<int64_t>();
  for (const size_t f : indices_of(files)) {
    read_cifar_records(files[f], kind, paths[f], to, label);
    to += counts[f] * kCifarPixels;
    label += counts[f];
  }
  return {as_bytes ? pixels : pixels.to(kFloat).div_(255.0), labels};
}

}  // namespace

// Only the first training file must exist, so a shortened copy of the data set can be read too.
DatasetSplit read_cifar10(const std::string& folder, const CifarOptions& options) {
  Strings train{need_cifar(folder, "data_batch_1.bin")};
  for (int batch = 2; batch <= 5; ++batch)
    if (const auto path = find_data_file(cat(folder, "/data_batch_", batch, ".bin")))
      train.push_back(*path);
  const CifarKind kind;
  return {read_files(train, kind, options.bytes),
          read_files({need_cifar(folder, "test_batch.bin")}, kind, options.bytes)};
}

// A record begins with the coarse label, and the fine one follows.
DatasetSplit read_cifar100(const std::string& folder, const CifarOptions& options) {
  const CifarKind kind{.labels = 2,
                       .label = options.coarse_labels ? 0U : 1U,
                       .classes = options.coarse_labels ? 20 : 100};
  return {read_files({need_cifar(folder, "train.bin")}, kind, options.bytes),
          read_files({need_cifar(folder, "test.bin")}, kind, options.bytes)};
}

}  // namespace muster
