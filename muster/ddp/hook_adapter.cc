// runHook() starts a bucket's reduction and keeps it under the bucket's number; parseHookResult()
// waits for it. Errors of a hook get the hook's name, the bucket's parameters and the rank.
#include "muster/ddp/hook_adapter.h"

#include <cstdint>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/tensor_text.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/call/stream_order.h"

namespace muster {

namespace {

bool is_like(const Tensor& tensor, const Tensor& model) {
  if (!tensor.defined() || tensor.sizes() != model.sizes())
    return false;
  return tensor.scalar_type() == model.scalar_type() && tensor.device() == model.device();
}

std::string shape_of(const Tensor& tensor) {
  return tensor.defined() ? tensor_text(tensor) : "none";
}

// The bucket's views in the parameters' shapes. A bucket of complex gradients has real numbers, but
// the Reducer counts them as complex ones, so that its own views are of the first half.
Tensors gradients_of(const c10d::GradBucket& bucket) {
  Tensors views;
  int64_t begin = 0;
  for (const Tensor& parameter : bucket.getParameters()) {
    if (!parameter.is_complex())
      return bucket.getGradients();
    auto shape = parameter.sizes().vec();
    shape.push_back(2);
    const int64_t end = begin + 2 * parameter.numel();
    views.push_back(bucket.getBuffer().slice(0, begin, end).view(shape));
    begin = end;
  }
  return views;
}

}  // namespace

HookAdapter::HookAdapter(Hook hook, ProcessGroup group, const TrainedParameters& parameters)
    : hook_(std::move(hook)), group_(std::move(group)) {
  for (const size_t i : indices_of(parameters.tensors))
    names_[parameters.tensors[i].unsafeGetTensorImpl()] = parameters.names[i];
}

// A sparse bucket has no views in the parameters' shapes.
GradientBucket HookAdapter::describe(c10d::GradBucket& bucket) const {
  GradientBucket found{.tensor = bucket.getBuffer(),
                       .gradients = {},
                       .parameters = bucket.getParameters(),
                       .names = {},
                       .index = bucket.getIndex(),
                       .last = bucket.isLast(),
                       .group = group_};
  for (const Tensor& parameter : found.parameters)
    found.names.push_back(names_.at(parameter.unsafeGetTensorImpl()));
  if (!found.tensor.is_sparse())
    found.gradients = gradients_of(bucket);
  return found;
}

// Inside of a handler: adds where the hook was to what it has thrown.
void HookAdapter::rethrow_named(size_t index, const Strings& names) const {
  const std::string what = cat("DistributedDataParallel: hook ",
                               hook_.name(),
                               ", bucket ",
                               index,
                               " (",
                               join(names, ", "),
                               "), rank ",
                               group_.job_rank());
  try {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), what, ": ", error.message());
  } catch (...) {
    rethrow_translated(what);
  }
}

// A sparse gradient is a bucket of its own, which hooks are not made for.
Reduction HookAdapter::reduce_sparse(const Tensor& tensor) {
  Tensors tensors{tensor};
  const auto work = group_.c10d()->allreduce(tensors);
  return [work, tensors, ranks = group_.size()]() mutable {
    work->wait();
    return tensors[0].div_(ranks);
  };
}

// Called by the Reducer when a bucket is full, in the order of the buckets.
FuturePtr HookAdapter::runHook(c10d::GradBucket& bucket) {
  GradientBucket described = describe(bucket);
  const size_t index = described.index;
  const Tensor tensor = described.tensor;
  auto names = described.names;
  try {
    Reduction reduction =
        tensor.is_sparse() ? reduce_sparse(tensor) : hook_->reduce(std::move(described));
    if (!tensor.is_cpu())
      last_stream_ = current_stream_of(tensor.device());
    pending_.insert_or_assign(
        index, Pending{std::move(reduction), tensor, std::move(names), last_stream_});
  } catch (...) {
    rethrow_named(index, names);
  }
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  future->markCompleted(static_cast<int64_t>(index));
  return future;
}

// Called by the Reducer at the end of the backward. A hook that returns another tensor than it
// should would put wrong gradients into the parameters.
Tensor HookAdapter::parseHookResult(const IValue& result) {
  const size_t index = result.toInt();
  auto node = pending_.extract(index);
  if (node.empty())
    throw Error(ErrorCode::internal, "hook: no bucket ", index, " is under way");
  Pending& pending = node.mapped();
  try {
    const OnStream on_stream(pending.stream);
    Tensor average = pending.reduction.get();
    on_stream.give(average);
    const Tensor& expected = pending.tensor;
    if (is_like(average, expected))
      return average;
    throw invalid_argument("expected a tensor like the bucket's, ",
                           shape_of(expected),
                           " on ",
                           expected.device().str(),
                           ", got ",
                           shape_of(average),
                           average.defined() ? cat(" on ", average.device().str()) : "",
                           "; return the average over the ranks");
  } catch (...) {
    rethrow_named(index, pending.names);
  }
}

void HookAdapter::end_step() {
  const OnStream on_stream(last_stream_);
  hook_->end_step();
}

}  // namespace muster
