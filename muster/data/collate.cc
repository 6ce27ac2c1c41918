// Joins the examples of a batch: tensors of one shape are stacked, Padded ones filled up to the
// longest, Packed ones put end to end. LibTorch's own messages do not say which example differs, so
// shapes and types are compared here first.
#include "muster/data/collate.h"

#include <cstdint>
#include <string>

#include <ATen/ops/cat.h>
#include <ATen/ops/pad_sequence.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

std::string shape_text(const at::Tensor& tensor) {
  return tensor.defined()
             ? cat("[", join(tensor.sizes(), ", "), "] ", c10::toString(tensor.scalar_type()))
             : "undefined";
}

// Whether both have one type and the same sizes from dimension `first_size` on.
bool are_alike(const at::Tensor& a, const at::Tensor& b, int64_t first_size) {
  if (!a.defined() || !b.defined())
    return false;
  if (a.scalar_type() != b.scalar_type() || a.dim() != b.dim() || a.dim() < first_size)
    return false;
  return a.sizes().slice(first_size) == b.sizes().slice(first_size);
}

// `first_size` of 1: tensors may differ in length.
void check_alike(const std::vector<at::Tensor>& tensors, int64_t first_size, const char* advice) {
  const at::Tensor& first = tensors.front();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& other = tensors[i];
    if (are_alike(first, other, first_size))
      continue;
    throw Error(ErrorCode::invalid_argument,
                cat("collate: expected tensors of one shape and type",
                    first_size == 1 ? " but for their length" : "",
                    ", got ",
                    shape_text(first),
                    " in a batch's first example and ",
                    shape_text(other),
                    " in example ",
                    i,
                    "; ",
                    advice));
  }
}

// The tensors of Padded or Packed examples, whose lengths may differ.
std::vector<at::Tensor> values_of(const auto& examples) {
  std::vector<at::Tensor> values;
  for (const auto& example : examples)
    values.push_back(example.values);
  check_alike(values, 1, "give them one type and the same dimensions after the first");
  return values;
}

}  // namespace

namespace collation {

// Numbers keep their width, whatever LibTorch's default type is.
at::Tensor tensor_of(const std::vector<int64_t>& numbers) {
  return at::tensor(numbers, at::kLong);
}
at::Tensor tensor_of(const std::vector<double>& numbers) {
  return at::tensor(numbers, at::kDouble);
}
at::Tensor tensor_of(const std::vector<float>& numbers) {
  return at::tensor(numbers, at::kFloat);
}

}  // namespace collation

at::Tensor stacked(const std::vector<at::Tensor>& tensors) {
  check_alike(tensors, 0, "resize them, or make the field a muster::Padded or muster::Packed");
  return at::stack(tensors);
}

// The lengths are kept, since the padded tensor no longer shows them. The filling is 0.
Padded Padded::collate(const std::vector<Padded>& examples) {
  const auto values = values_of(examples);
  std::vector<int64_t> lengths;
  for (const at::Tensor& tensor : values)
    lengths.push_back(tensor.size(0));
  return {.values = at::pad_sequence(values, /*batch_first=*/true),
          .lengths = at::tensor(lengths, at::kLong)};
}

// Example i lies from offsets[i] to offsets[i + 1], so there is one offset more than examples.
Packed Packed::collate(const std::vector<Packed>& examples) {
  const auto values = values_of(examples);
  std::vector<int64_t> offsets{0};
  for (const at::Tensor& tensor : values)
    offsets.push_back(offsets.back() + tensor.size(0));
  return {.values = at::cat(values), .offsets = at::tensor(offsets, at::kLong)};
}

}  // namespace muster
