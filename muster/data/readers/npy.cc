// Arrays of numpy as tensors over the file's pages. The pages are this process's own copy, so that
// LibTorch may write to the tensor; the tensor keeps the mapping alive.
#include "muster/data/readers/npy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/readers/mapped_file.h"
#include "muster/data/readers/npy_header.h"

namespace muster {

namespace {

// By kind and bytes. parse_npy_header lets only those through that have a type here.
using KindAndSize = std::pair<char, int64_t>;
constexpr std::pair<KindAndSize, ScalarType> kTypes[] = {
    {{'b', 1}, kBool},
    {{'i', 1}, kChar},
    {{'i', 2}, kShort},
    {{'i', 4}, kInt},
    {{'i', 8}, kLong},
    {{'u', 1}, kByte},
    {{'u', 2}, at::kUInt16},
    {{'u', 4}, at::kUInt32},
    {{'u', 8}, at::kUInt64},
    {{'f', 2}, kHalf},
    {{'f', 4}, kFloat},
    {{'f', 8}, kDouble},
    {{'c', 8}, kComplexFloat},
    {{'c', 16}, kComplexDouble},
};

// Fortran order puts the first dimension innermost. LibTorch counts an extent of 0 as 1.
Int64s strides_of(const NpyHeader& header) {
  Int64s strides(header.shape.size());
  int64_t stride = 1;
  for (const size_t i : indices_of(strides)) {
    const size_t dimension = header.fortran_order ? i : strides.size() - 1 - i;
    strides[dimension] = stride;
    stride *= std::max<int64_t>(header.shape[dimension], 1);
  }
  return strides;
}

}  // namespace

Tensor read_npy(const std::string& path) {
  auto file = std::make_shared<MappedFile>(path, MappedFile::Access::own_copy);
  const NpyHeader header = parse_npy_header(file->bytes(), path);
  const auto type = lookup(kTypes, KindAndSize(header.kind, header.item_size), kByte);
  // An array without elements has no data to point at.
  if (contains(header.shape, 0))
    return at::empty(header.shape, type);
  char* const data = file->data() + header.data_begin;
  if (header.data_begin % header.item_size == 0)
    return at::from_blob(data, header.shape, strides_of(header), [file](void*) {}, type);
  // Numpy aligns to 16 bytes or more; another program may not have.
  auto copy = at::empty_strided(header.shape, strides_of(header), type);
  std::memcpy(copy.mutable_data_ptr(), data, copy.nbytes());
  return copy;
}

namespace {

// A number of 64 bits without a sign may be no int64: it would become a negative one, and -100 is
// what many losses ignore.
Tensor as_classes(const Tensor& labels, const std::string& path) {
  const Tensor classes = labels.to(kLong);
  const bool may_wrap = labels.scalar_type() == at::kUInt64 && labels.numel() > 0;
  if (!may_wrap || classes.min().item<int64_t>() >= 0)
    return classes;
  throw invalid_argument("npy: expected labels below 2^63 in '",
                         path,
                         "', got ",
                         std::bit_cast<uint64_t>(classes.min().item<int64_t>()),
                         "; save them as int64, with a label to ignore as -100");
}

}  // namespace

// Losses take classes as int64, so integers of any width become that. Other labels stay as they
// are.
TensorDataset read_npy_dataset(const std::string& features, const std::string& labels) {
  auto classes = read_npy(labels);
  if (at::isIntegralType(classes.scalar_type(), /*includeBool=*/true))
    classes = as_classes(classes, labels);
  return {read_npy(features), classes};
}

}  // namespace muster
