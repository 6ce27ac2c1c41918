// Arrays of numpy as tensors over the file's pages. The pages are this process's own copy, so that
// LibTorch may write to the tensor; the tensor keeps the mapping alive.
#include "muster/data/readers/npy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "muster/data/readers/mapped_file.h"
#include "muster/data/readers/npy_header.h"

namespace muster {

namespace {

at::ScalarType float_type_of(int64_t bytes) {
  switch (bytes) {
    case 2:
      return at::kHalf;
    case 4:
      return at::kFloat;
    default:
      return at::kDouble;
  }
}

at::ScalarType integer_type_of(int64_t bytes, bool is_signed) {
  switch (bytes) {
    case 1:
      return is_signed ? at::kChar : at::kByte;
    case 2:
      return is_signed ? at::kShort : at::kUInt16;
    case 4:
      return is_signed ? at::kInt : at::kUInt32;
    default:
      return is_signed ? at::kLong : at::kUInt64;
  }
}

// parse_npy_header lets only kinds and sizes through that have a type here.
at::ScalarType scalar_type_of(const NpyHeader& header) {
  switch (header.kind) {
    case 'b':
      return at::kBool;
    case 'f':
      return float_type_of(header.item_size);
    case 'c':
      return header.item_size == 8 ? at::kComplexFloat : at::kComplexDouble;
    default:
      return integer_type_of(header.item_size, header.kind == 'i');
  }
}

// Fortran order puts the first dimension innermost. LibTorch counts an extent of 0 as 1.
std::vector<int64_t> strides_of(const NpyHeader& header) {
  std::vector<int64_t> strides(header.shape.size());
  int64_t stride = 1;
  for (size_t i = 0; i < strides.size(); ++i) {
    const size_t dimension = header.fortran_order ? i : strides.size() - 1 - i;
    strides[dimension] = stride;
    stride *= std::max<int64_t>(header.shape[dimension], 1);
  }
  return strides;
}

}  // namespace

at::Tensor read_npy(const std::string& path) {
  auto file = std::make_shared<MappedFile>(path, MappedFile::Access::own_copy);
  const NpyHeader header = parse_npy_header(file->bytes(), path);
  const auto type = scalar_type_of(header);
  // An array without elements has no data to point at.
  if (std::find(header.shape.begin(), header.shape.end(), 0) != header.shape.end())
    return at::empty(header.shape, type);
  char* const data = file->data() + header.data_begin;
  if (header.data_begin % header.item_size == 0)
    return at::from_blob(data, header.shape, strides_of(header), [file](void*) {}, type);
  // Numpy aligns to 16 bytes or more; another program may not have.
  auto copy = at::empty_strided(header.shape, strides_of(header), type);
  std::memcpy(copy.mutable_data_ptr(), data, copy.nbytes());
  return copy;
}

// Losses take classes as int64, so integers of any width become that. Other labels stay as they
// are.
TensorDataset read_npy_dataset(const std::string& features, const std::string& labels) {
  auto classes = read_npy(labels);
  if (at::isIntegralType(classes.scalar_type(), /*includeBool=*/true))
    classes = classes.to(at::kLong);
  return {read_npy(features), classes};
}

}  // namespace muster
