// The part of a subset that knows no type of example: its indices, checked once, so that no batch
// need check them.
#include "muster/data/subset.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <span>

#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/data/mix.h"

namespace muster::datasets {

namespace {

constexpr Refusal refuse_indices{"subset", "pass those of this data set"};

// Memory of its own: what a program writes into its tensor later changes no subset.
Tensor own_indices(const Tensor& indices) {
  if (!indices.defined() || indices.dim() != 1 || indices.scalar_type() != kLong)
    refuse_indices("indices of shape [M], int64", tensor_text(indices));
  return indices.detach().to(kCPU).contiguous().clone();
}

std::span<const int64_t> numbers_of(const Tensor& indices) {
  const int64_t* const first = indices.const_data_ptr<int64_t>();
  return {first, first + indices.numel()};
}

}  // namespace

SubsetIndices::SubsetIndices(const Int64s& indices, int64_t size)
    : SubsetIndices(at::tensor(indices, kLong), size) {}

SubsetIndices::SubsetIndices(const Tensor& indices, int64_t size) : indices_(own_indices(indices)) {
  const auto numbers = numbers_of(indices_);
  const auto wrong =
      std::ranges::find_if(numbers, [&](int64_t index) { return index < 0 || index >= size; });
  if (wrong != numbers.end())
    refuse_indices(
        size > 0 ? cat("indices from 0 to ", size - 1) : "no indices of an empty data set",
        cat(*wrong, " at place ", wrong - numbers.begin()));
  identity_ = mixed(size, numbers.size());
  for (const int64_t index : numbers)
    identity_ = mixed(identity_, index);
}

uint64_t joined_identity(uint64_t of_indices, uint64_t of_dataset) {
  return mixed(of_indices, of_dataset);
}

int64_t SubsetIndices::at(int64_t place) const {
  if (place < 0 || place >= size())
    refuse_indices(cat("a sample from 0 to ", size() - 1), cat(place));
  return indices_.const_data_ptr<int64_t>()[place];
}

}  // namespace muster::datasets
