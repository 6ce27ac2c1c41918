// The sample is a sum over at most 512 values in memory order, a fixed distance apart. A change of
// the tensor by a part of its size changes the sum by about that part of the sample's size.
#include "muster/ddp/value_sample.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "muster/base/divided_up.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

constexpr int64_t sampled_values = 512;

// Returns a view of memory, whatever the order of the dimensions is.
Tensor values_in_memory(const Tensor& tensor) {
  const Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  const Tensor flat = real.as_strided({real.numel()}, {1});
  const int64_t distance = divided_up(flat.numel(), sampled_values);
  return flat.slice(0, 0, flat.numel(), distance);
}

// A sharded model frees the memory of a parameter while it is not needed.
bool can_be_sampled(const Tensor& tensor) {
  return tensor.defined() && tensor.layout() == kStrided && tensor.is_non_overlapping_and_dense() &&
         tensor.numel() > 0 && !tensor.is_conj() && !tensor.is_neg() &&
         tensor.storage().nbytes() >= tensor.nbytes();
}

// Without gaps, on the tensor's device.
Tensor sampled_doubles_of(const Tensor& tensor) {
  return values_in_memory(tensor.detach()).to(kDouble).contiguous();
}

ValueSample sample_from(const Tensor& values, ScalarType type) {
  const auto* const data = values.const_data_ptr<double>();
  ValueSample sample{.size = 0, .tolerance = roundings_of(type)};
  double squares = 0;
  for (const int64_t i : indices_below(values.numel())) {
    sample.sum += data[i];
    squares += data[i] * data[i];
  }
  sample.size = std::sqrt(squares);
  return sample;
}

}  // namespace

// A last bit of bf16 is 1/128 of a value; of float32 it is nothing beside 1e-5.
double roundings_of(ScalarType type) {
  const bool is_short = c10::elementSize(c10::toRealValueType(type)) < sizeof(float);
  return is_short ? 0.03 : 1e-5;
}

ValueSample sample_of(const Tensor& tensor) {
  return tensor.is_cpu() ? awaited_sample_of(tensor) : ValueSample();
}

ValueSample awaited_sample_of(const Tensor& tensor) {
  if (!can_be_sampled(tensor))
    return {};
  const NoGradGuard no_grad;
  return sample_from(sampled_doubles_of(tensor).cpu(), tensor.scalar_type());
}

// The values of all lie one behind another, on the first one's device.
std::vector<ValueSample> awaited_samples_of(const Tensors& tensors) {
  const NoGradGuard no_grad;
  Tensors parts;
  for (const Tensor& tensor : filtered(tensors, can_be_sampled)) {
    const Tensor part = sampled_doubles_of(tensor);
    parts.push_back(parts.empty() ? part : part.to(parts[0].device()));
  }
  std::vector<ValueSample> samples(tensors.size());
  if (parts.empty())
    return samples;
  const Tensor all = at::cat(parts).cpu();
  int64_t from = 0;
  size_t next = 0;
  for (const size_t i : indices_of(tensors)) {
    if (!can_be_sampled(tensors[i]))
      continue;
    const int64_t values = parts[next++].numel();
    samples[i] = sample_from(all.narrow(0, from, values), tensors[i].scalar_type());
    from += values;
  }
  return samples;
}

bool ValueSample::differs_from(const ValueSample& other) const {
  if (!is_taken() || !other.is_taken())
    return false;
  if (std::isfinite(sum) != std::isfinite(other.sum))
    return true;
  return std::abs(sum - other.sum) > tolerance * std::max(size, other.size);
}

bool ValueSample::has_bits_of(const ValueSample& other) const {
  return size > 0 && size == other.size && sum == other.sum;
}

}  // namespace muster
