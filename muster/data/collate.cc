// Joins the examples of a batch: tensors of one shape are stacked, Padded ones filled up to the
// longest, Packed ones put end to end. LibTorch's own messages do not say which example differs, so
// shapes and types are compared here first.
#include "muster/data/collate.h"

#include <algorithm>

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/data/batch_memory.h"
#include "muster/data/batch_places.h"

namespace muster {

namespace {

// Whether batches are page-locked. It belongs to the thread, not to the calls, so that it reaches
// what a type's own collate() calls.
thread_local bool t_pinned = false;

// Whether both have one type and the same sizes from dimension `first_size` on.
bool are_alike(const Tensor& a, const Tensor& b, int64_t first_size) {
  if (!a.defined() || !b.defined())
    return false;
  if (a.scalar_type() != b.scalar_type() || a.dim() != b.dim() || a.dim() < first_size)
    return false;
  return a.sizes().slice(first_size) == b.sizes().slice(first_size);
}

// `first_size` of 1: tensors may differ in length.
void check_alike(const Tensors& tensors, int64_t first_size, const char* advice) {
  const Tensor& first = tensors.front();
  for (const size_t i : indices_of(tensors)) {
    const Tensor& other = tensors[i];
    if (are_alike(first, other, first_size))
      continue;
    throw invalid_argument("collate: expected tensors of one shape and type",
                           first_size == 1 ? " but for their length" : "",
                           ", got ",
                           tensor_text(first),
                           " in a batch's first example and ",
                           tensor_text(other),
                           " in example ",
                           i,
                           "; ",
                           advice);
  }
}

// Returns the tensors of Padded or Packed examples, whose lengths may differ.
Tensors values_of(const auto& examples) {
  return mapped(examples, [&](const auto& example) { return example.values; });
}

void check_alike_but_for_length(const Tensors& values) {
  check_alike(values, 1, "give them one type and the same dimensions after the first");
}

// In a tensor of bytes a filling of -100 would become 156, which may be a class.
void check_holds(const Tensor& example, int64_t filling) {
  if (filling == 0 ||
      at::scalar_tensor(filling, kLong).to(example.scalar_type()).item<int64_t>() == filling)
    return;
  throw invalid_argument("collate: expected tensors that can be padded with ",
                         filling,
                         ", got ",
                         tensor_text(example),
                         "; give them a type that holds it, or pad with another number");
}

// Returns the options of a batch whose examples are like this one. Only plain tensors of the host
// can be page-locked.
at::TensorOptions batch_options(const Tensor& example) {
  const bool can_be = example.is_cpu() && example.layout() == kStrided && !example.is_quantized();
  return example.options().pinned_memory(t_pinned && can_be);
}

// Whether a loader says where its batch is to lie.
bool has_place(const Tensor& example) {
  return has_batch_memory_for(example) || batch_options(example).pinned_memory();
}

// LibTorch gives the empty tensor the size and the strides that it would give a result of its own,
// out of the memory that the empty tensor has.
Tensor concatenated(const Tensors& tensors) {
  const Tensor& first = tensors.front();
  if (!has_place(first))
    return at::cat(tensors);
  auto joined = batch_tensor(batch_options(first));
  at::cat_out(joined, tensors);
  return joined;
}

// With a place it has the strides of at::stack(), which also concatenates where it can.
Tensor stack_of_alike(const Tensors& tensors) {
  const Tensor& first = tensors.front();
  if (first.dim() == 0 || !has_place(first))
    return at::stack(tensors);
  auto shape = first.sizes().vec();
  shape.insert(shape.begin(), std::ssize(tensors));
  return at::_unsafe_view(concatenated(tensors), shape);
}

void check_stackable(const Tensors& tensors) {
  check_alike(tensors, 0, "resize them, or make the field a muster::Padded or muster::Packed");
}

}  // namespace

PinnedCollation::PinnedCollation(bool pinned) : before_(std::exchange(t_pinned, pinned)) {}

PinnedCollation::~PinnedCollation() {
  t_pinned = before_;
}

Tensor stacked(const Tensors& tensors) {
  check_stackable(tensors);
  return stack_of_alike(tensors);
}

Tensor stacked(Tensors&& tensors) {
  check_stackable(tensors);
  if (auto batch = BatchPlaces::joined(tensors))
    return *std::move(batch);
  return stack_of_alike(tensors);
}

Padded Padded::collate(const std::vector<Padded>& examples) {
  return padded_with(0, values_of(examples));
}

// The lengths are kept, since the padded tensor no longer shows them.
Padded padded_with(int64_t filling, const Tensors& values) {
  check_alike_but_for_length(values);
  check_holds(values.front(), filling);
  Int64s lengths = mapped(values, [&](const Tensor& tensor) { return tensor.size(0); });
  auto shape = values.front().sizes().vec();
  shape.front() = *std::max_element(lengths.begin(), lengths.end());
  shape.insert(shape.begin(), std::ssize(values));
  const auto padded = batch_tensor(batch_options(values.front())).resize_(shape).fill_(filling);
  for (const size_t i : indices_of(values))
    padded[static_cast<int64_t>(i)].narrow(0, 0, lengths[i]).copy_(values[i]);
  return {.values = padded, .lengths = at::tensor(lengths, kLong)};
}

// Example i lies from offsets[i] to offsets[i + 1], so there is one offset more than examples.
Packed Packed::collate(const std::vector<Packed>& examples) {
  const auto values = values_of(examples);
  check_alike_but_for_length(values);
  Int64s offsets{0};
  for (const Tensor& tensor : values)
    offsets.push_back(offsets.back() + tensor.size(0));
  return {.values = concatenated(values), .offsets = at::tensor(offsets, kLong)};
}

}  // namespace muster
