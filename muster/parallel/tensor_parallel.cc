#include "muster/parallel/tensor_parallel.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/parallel/collective_function.h"

namespace muster {

namespace {

constexpr const char* kSeedAlike = "make it after torch::manual_seed of one number on every rank";

// The slice as a parameter with storage of its own.
at::Tensor tensor_slice(const at::Tensor& whole, int64_t dim, Part part, int64_t stacks = 1) {
  if (!whole.defined()) return {};
  const at::NoGradGuard no_grad;
  const int64_t at_dim = stacks == 1 ? dim : dim + 1;
  const at::Tensor stacked = stacks == 1 ? whole : whole.unflatten(dim, {stacks, -1});
  at::Tensor slice = stacked.narrow(at_dim, part.begin, part.length);
  if (stacks > 1) slice = slice.flatten(dim, dim + 1);
  return slice.detach().clone(at::MemoryFormat::Contiguous).set_requires_grad(whole.requires_grad());
}

// Parts of perhaps different lengths along `dim`, joined: padded to the longest, and cut after.
at::Tensor gather_uneven(const at::Tensor& mine, int64_t total, int64_t dim, ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  const int64_t ranks = group.size();
  const int64_t longest = (total + ranks - 1) / ranks;
  std::vector<int64_t> sizes = mine.sizes().vec();
  sizes[static_cast<size_t>(dim)] = longest;
  at::Tensor padded = at::zeros(sizes, mine.options());
  padded.narrow(dim, 0, mine.size(dim)).copy_(mine.detach());
  const at::Tensor all = gathered(padded, group, dim).unflatten(dim, {ranks, longest});
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t length = total / ranks + (rank < total % ranks ? 1 : 0);
    parts.push_back(all.select(dim, rank).narrow(dim, 0, length));
  }
  return at::cat(parts, dim);
}

void expect_division(const char* call, const char* what, int64_t size, const ProcessGroup& group) {
  if (size % group.size() == 0) return;
  throw Error(ErrorCode::invalid_argument,
              cat(call, ": expected ", what, " that ", plural(group.size(), "rank"), " divide, got ", size,
                  " (rank ", group.rank(), "); change the layer, or the group's size"));
}

void expect_same_layer(const char* call, const at::Tensor& weight, const at::Tensor& bias,
                       const std::string& options, ProcessGroup& group) {
  expect_same(call, cat("weight ", fingerprint(weight), ", bias ", fingerprint(bias), options), group,
              kSeedAlike);
}

}  // namespace

at::Tensor copy_to_group(const at::Tensor& x, ProcessGroup group) {
  return with_backward(
      x, [](const at::Tensor& same) { return same; },
      [group](const at::Tensor& gradient) { return reduce_from_group(gradient, group); });
}

at::Tensor reduce_from_group(const at::Tensor& x, ProcessGroup group) {
  return with_backward(
      x, [&](const at::Tensor& part) { return summed(part, group); },
      [group](const at::Tensor& gradient) { return copy_to_group(gradient, group); });
}

at::Tensor gather_from_group(const at::Tensor& x, ProcessGroup group, int64_t dim) {
  if (dim < 0) dim += x.dim();
  return with_backward(
      x, [&](const at::Tensor& part) { return gathered(part, group, dim); },
      [group, dim](const at::Tensor& gradient) { return scatter_to_group(gradient, group, dim); });
}

at::Tensor scatter_to_group(const at::Tensor& x, ProcessGroup group, int64_t dim) {
  dim = divisible_dim("scatter_to_group", x, group, dim);
  return with_backward(
      x, [&](const at::Tensor& whole) { return own_part(whole, group, dim); },
      [group, dim](const at::Tensor& gradient) { return gather_from_group(gradient, group, dim); });
}

Part division(int64_t total, const ProcessGroup& group) {
  const int64_t least = total / group.size();
  const int64_t more = total % group.size();
  const int64_t rank = group.rank();
  return {.begin = rank * least + std::min(rank, more), .length = least + (rank < more ? 1 : 0)};
}

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const torch::nn::Linear& whole, ProcessGroup group,
                                                   ColumnOptions options)
    : group_(std::move(group)), options_(options), outputs_(whole->weight.size(0)) {
  constexpr const char* kCall = "column_parallel";
  expect_same_layer(kCall, whole->weight, whole->bias,
                    cat(", stacks ", options_.stacks, options_.uneven ? ", uneven" : ""), group_);
  const int64_t stacks = options_.stacks;
  if (stacks < 1 || outputs_ % stacks != 0 || (options_.uneven && stacks != 1)) {
    throw Error(ErrorCode::invalid_argument,
                cat(kCall, ": expected stacks of one size, and one alone where uneven, got ", stacks,
                    " stacks of ", outputs_, " outputs (rank ", group_.rank(), "); correct the options"));
  }
  if (!options_.uneven)
    expect_division(kCall, stacks == 1 ? "outputs" : "outputs a stack", outputs_ / stacks, group_);
  const Part part = division(outputs_ / stacks, group_);
  weight = register_parameter("weight", tensor_slice(whole->weight, 0, part, stacks));
  bias = register_parameter("bias", tensor_slice(whole->bias, 0, part, stacks));
}

at::Tensor ColumnParallelLinearImpl::local(const at::Tensor& x) const {
  return at::linear(x, weight, bias);
}

WholeParameters ColumnParallelLinearImpl::gather_parameters() const {
  const auto whole = [&](const at::Tensor& mine) {
    if (options_.stacks == 1) return gather_uneven(mine, outputs_, 0, group_);
    const at::Tensor stacked = mine.detach().unflatten(0, {options_.stacks, -1});
    return gathered(stacked, group_, 1).flatten(0, 1);
  };
  WholeParameters all{{"weight", whole(weight)}};
  if (bias.defined()) all.emplace("bias", whole(bias));
  return all;
}

RowParallelLinearImpl::RowParallelLinearImpl(const torch::nn::Linear& whole, ProcessGroup group)
    : group_(std::move(group)) {
  constexpr const char* kCall = "row_parallel";
  expect_same_layer(kCall, whole->weight, whole->bias, "", group_);
  expect_division(kCall, "inputs", whole->weight.size(1), group_);
  weight =
      register_parameter("weight", tensor_slice(whole->weight, 1, division(whole->weight.size(1), group_)));
  bias = register_parameter(
      "bias", whole->bias.defined() ? tensor_slice(whole->bias, 0, {0, whole->bias.size(0)}) : at::Tensor());
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& x) {
  const at::Tensor sum = reduce_from_group(partial(x), group_);
  return bias.defined() ? sum + bias : sum;
}

at::Tensor RowParallelLinearImpl::partial(const at::Tensor& x) const {
  return at::linear(x, weight);
}

WholeParameters RowParallelLinearImpl::gather_parameters() const {
  WholeParameters all{{"weight", gathered(weight.detach(), group_, 1)}};
  if (bias.defined()) all.emplace("bias", bias.detach().clone());
  return all;
}

ColumnParallelLinear column_parallel(const torch::nn::Linear& whole, ProcessGroup group,
                                     ColumnOptions options) {
  return ColumnParallelLinear(whole, std::move(group), options);
}

RowParallelLinear row_parallel(const torch::nn::Linear& whole, ProcessGroup group) {
  return RowParallelLinear(whole, std::move(group));
}

}  // namespace muster
