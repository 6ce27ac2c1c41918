// LibTorch's kernels of a synchronised batch norm, which it has for GPUs alone, put together from
// other operations. The statistics of the ranks are joined as Normalization.cuh does: a first rank
// without values makes them NaN.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace muster::testing {

namespace {

using MaybeNone = std::optional<at::Tensor>;

bool is_there(const MaybeNone& tensor) {
  return tensor && tensor->defined();
}

at::ScalarType type_of_sums(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.to(type_of_sums(tensor));
}

std::vector<int64_t> dims_but_channels(const at::Tensor& tensor) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < tensor.dim(); ++dim)
    dims.push_back(dim);
  return dims;
}

// Shapes: [C] → as many dimensions as `like` has.
at::Tensor of_channels(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

void expect_type(const at::Tensor& tensor, at::ScalarType type, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == type,
              "Expected ",
              name,
              " to have type ",
              type,
              " but got ",
              tensor.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> norm_stats(const at::Tensor& input, double eps) {
  TORCH_CHECK(input.numel() > 0, "batch_norm_stats: no values");
  const at::Tensor values = widened(input);
  const auto dims = dims_but_channels(values);
  const at::Tensor mean = values.mean(dims);
  const at::Tensor variance = (values - of_channels(mean, values)).square().mean(dims);
  return {mean, (variance + eps).rsqrt()};
}

void move_towards(const MaybeNone& running, const at::Tensor& now, double momentum) {
  if (is_there(running))
    at::Tensor(*running).mul_(1 - momentum).add_(now.to(running->scalar_type()), momentum);
}

std::tuple<at::Tensor, at::Tensor> norm_gather_stats(const at::Tensor& input,
                                                     const at::Tensor& means,
                                                     const at::Tensor& invstds,
                                                     const MaybeNone& running_mean,
                                                     const MaybeNone& running_var,
                                                     double momentum,
                                                     double eps,
                                                     const at::Tensor& counts) {
  const at::Tensor& typed = is_there(running_mean) ? *running_mean : input;
  expect_type(counts, typed.scalar_type(), "counts");
  expect_type(means, type_of_sums(typed), "mean");
  at::Tensor mean = at::zeros_like(means[0]), squares = at::zeros_like(means[0]);
  at::Tensor seen = at::zeros_like(counts[0]);
  for (int64_t rank = 0; rank < means.size(0); ++rank) {
    const at::Tensor count = counts[rank];
    const at::Tensor factor = (seen + count).reciprocal();
    squares = squares + (invstds[rank].square().reciprocal() - eps) * count +
              (mean - means[rank]).square() * seen * count * factor;
    mean = mean * (seen * factor) + means[rank] * (count * factor);
    seen = seen + count;
  }
  move_towards(running_mean, mean, momentum);
  move_towards(running_var, squares / (seen - 1), momentum);
  return {mean, (squares / seen + eps).rsqrt()};
}

at::Tensor norm_elemt(const at::Tensor& input,
                      const MaybeNone& weight,
                      const MaybeNone& bias,
                      const at::Tensor& mean,
                      const at::Tensor& invstd,
                      double /*eps*/) {
  at::Tensor output = (widened(input) - of_channels(mean, input)) * of_channels(invstd, input);
  if (is_there(weight))
    output = output * of_channels(*weight, input);
  if (is_there(bias))
    output = output + of_channels(*bias, input);
  return output.to(input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_backward_reduce(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const MaybeNone& weight,
    bool /*input_g*/,
    bool weight_g,
    bool bias_g) {
  const at::Tensor given = widened(gradient);
  const auto dims = dims_but_channels(given);
  const at::Tensor sum = given.sum(dims);
  const at::Tensor products = (given * (widened(input) - of_channels(mean, input))).sum(dims);
  const at::Tensor of_weight =
      weight_g ? (products * invstd).to(weight->scalar_type()) : at::Tensor();
  return {sum, products, of_weight, bias_g ? sum.to(weight->scalar_type()) : at::Tensor()};
}

at::Tensor norm_backward_elemt(const at::Tensor& gradient,
                               const at::Tensor& input,
                               const at::Tensor& mean,
                               const at::Tensor& invstd,
                               const MaybeNone& weight,
                               const at::Tensor& sum,
                               const at::Tensor& products,
                               const at::Tensor& counts) {
  expect_type(counts, at::kInt, "count");
  const at::Tensor per_value = counts.sum().to(mean.scalar_type()).reciprocal();
  const at::Tensor slope = invstd.square() * products * per_value;
  const at::Tensor scale = is_there(weight) ? invstd * *weight : invstd;
  const at::Tensor centred = widened(input) - of_channels(mean, input);
  const at::Tensor change =
      widened(gradient) - of_channels(sum * per_value, input) - centred * of_channels(slope, input);
  return (change * of_channels(scale, input)).to(input.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("batch_norm_stats", norm_stats);
  library.impl("batch_norm_gather_stats_with_counts", norm_gather_stats);
  library.impl("batch_norm_elemt", norm_elemt);
  library.impl("batch_norm_backward_reduce", norm_backward_reduce);
  library.impl("batch_norm_backward_elemt", norm_backward_elemt);
}

}  // namespace

}  // namespace muster::testing
