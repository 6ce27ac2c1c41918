// The gradients that a pipeline must reduce: those of a stage over its replicas, in a bucket for
// each type, and those of tied weights over the ranks that have a copy. A tied weight's gradients
// of earlier steps are set aside during a step (before_), since they are summed over the ranks
// already.
#include "muster/parallel/pipeline/gradients.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/tensor_text.h"
#include "muster/parallel/pipeline/messages.h"

namespace muster {

namespace {

// Empty on a rank that does not have the weight.
std::string form_of_tied(const Tensor& parameter) {
  if (!parameter.defined())
    return "";
  const std::string form = tensor_text(parameter);
  return parameter.requires_grad() ? form : cat(form, ", frozen");
}

}  // namespace

bool may_have_gradient(const Tensor& parameter) {
  return parameter.requires_grad() || parameter.grad().defined();
}

// All replicas construct it together. They start from rank 0's values, so that equal gradients keep
// them equal.
StageAverage::StageAverage(const Tensors& parameters, ProcessGroup replicas)
    : replicas_(std::move(replicas)), memory_(parameters) {
  take_first();
  for (const Tensor& parameter : parameters) {
    if (!may_have_gradient(parameter))
      continue;
    // A flat buffer has one type, so parameters of each type have a bucket.
    auto bucket = std::ranges::find_if(buckets_, [&](const Bucket& other) {
      return other.parameters[0].scalar_type() == parameter.scalar_type();
    });
    if (bucket == buckets_.end())
      bucket = buckets_.insert(bucket, Bucket());
    bucket->parameters.push_back(parameter);
  }
}

// All replicas call it together.
void StageAverage::take_first() {
  const NoGradGuard no_grad;
  for (const Tensor& parameter : memory_.parameters())
    replicas_.broadcast(parameter, 0);
  memory_.remember();
}

namespace {

// Collectives add up dense gradients only.
void require_dense(const Tensor& parameter, const char* where, const ProcessGroup& group) {
  if (parameter.grad().layout() == kStrided)
    return;
  throw invalid_argument("pipeline: expected dense gradients ",
                         where,
                         ", got a sparse one of ",
                         tensor_text(parameter),
                         " (rank ",
                         group.job_rank(),
                         "); make the embedding without .sparse(true)");
}

// The gradient as one row, or zeros where there is none.
Tensor flat_gradient(const Tensor& parameter, const ProcessGroup& replicas) {
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined())
    return at::zeros({parameter.numel()}, parameter.options());
  require_dense(parameter, "where replicas average them", replicas);
  return gradient.reshape({-1});
}

}  // namespace

// Behind the gradients stands for each whether there was one: replicas may use other parts of a
// stage, and what none has used must not be stepped on, as in one process.
void StageAverage::start() {
  const NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    Tensors parts = mapped(bucket.parameters, [&](const Tensor& parameter) {
      return flat_gradient(parameter, replicas_);
    });
    const auto are_there = mapped(bucket.parameters, [](const Tensor& parameter) {
      return parameter.grad().defined() ? 1.0 : 0.0;
    });
    parts.push_back(at::tensor(are_there, kDouble).to(parts[0].options()));
    bucket.flat = at::cat(parts);
    bucket.work = replicas_.all_reduce_async(bucket.flat, ReduceOp::avg);
  }
}

// It waits for the collectives that start() has begun, and puts the means into the gradients. Only
// a rank that lacks a gradient waits for the device, to learn whether another has it.
void StageAverage::finish() {
  const NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    bucket.work->wait();
    const int64_t count = std::ssize(bucket.parameters);
    const Tensor are_there = bucket.flat.narrow(0, bucket.flat.numel() - count, count);
    int64_t at = 0;
    for (const int64_t i : indices_below(count)) {
      const Tensor& parameter = bucket.parameters[i];
      const Tensor part = bucket.flat.narrow(0, at, parameter.numel()).view(parameter.sizes());
      at += parameter.numel();
      if (parameter.grad().defined())
        parameter.grad().copy_(part);
      else if (are_there[i].ne(0).item<bool>())
        parameter.mutable_grad() = at::empty_like(parameter).copy_(part);
    }
    bucket.flat.reset();
    bucket.work.reset();
  }
}

namespace {

ParameterMemory memory_of(const Tensor& parameter) {
  return ParameterMemory(parameter.defined() ? std::vector{parameter} : Tensors{});
}

// Returns the ranks that have the weight. All ranks call it together, and throw alike.
Ints agreed_holders(const Tensor& parameter, ProcessGroup& group) {
  const Strings forms = group.all_gather_bytes(form_of_tied(parameter), "a tied weight");
  Ints holders =
      filtered_indices<int>(group.size(), [&](int rank) { return !forms[rank].empty(); });
  if (holders.empty()) {
    throw invalid_argument(
        "pipeline: expected a tied weight on some rank, got none on any; give it where it is used");
  }
  const std::string& first = forms[holders[0]];
  for (const int rank : holders) {
    if (forms[rank] == first)
      continue;
    throw invalid_argument("pipeline: expected tied weights of one shape and type, got ",
                           first,
                           " on rank ",
                           group.job_rank(holders[0]),
                           " and ",
                           forms[rank],
                           " on rank ",
                           group.job_rank(rank),
                           "; tie copies of one weight");
  }
  return holders;
}

// Modules on the way are looked up by name, since one of them may have been replaced.
Tensor parameter_at(const Module& module, const std::string& name) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos) {
    const auto own = module.named_parameters(/*recurse=*/false);
    const Tensor* const found = own.find(name);
    return found != nullptr ? *found : Tensor();
  }
  const auto children = module.named_children();
  const auto* const child = children.find(name.substr(0, dot));
  return child != nullptr ? parameter_at(**child, name.substr(dot + 1)) : Tensor();
}

}  // namespace

Tensor StagePlace::parameter_now() const {
  return module ? parameter_at(*module, name) : Tensor();
}

// All ranks of the pipeline construct it together; one without the weight gives an undefined
// tensor.
TiedWeight::TiedWeight(Tensor parameter, StagePlace place, ProcessGroup& group)
    : parameter_(std::move(parameter)),
      agreed_(parameter_),
      place_(std::move(place)),
      memory_(memory_of(parameter_)) {
  const Ints holders = agreed_holders(parameter_, group);
  // Every rank sees all names in the ranks' order, so all agree on the first. A rank may give a
  // weight that no stage of its own has.
  const auto names = group.all_gather_bytes(place_.name, "a tied weight's name");
  for (const std::string& other : names)
    if (!other.empty() && !contains(names_, other))
      names_.push_back(other);
  is_copy_ = std::any_of(names.begin(), names.begin() + group.rank(), [](const std::string& other) {
    return !other.empty();
  });
  if (holders.size() == 1)
    return;
  // Every rank of `group` takes part, though only holders get the group.
  holders_ = group.new_group(holders);
  take_first();
}

// A stage that has no such name any more may still compute with the weight.
void TiedWeight::look_again() {
  const Tensor now = place_.parameter_now();
  if (!now.defined() || now.is_same(parameter_))
    return;
  parameter_ = now;
  memory_ = memory_of(now);
}

// What was set aside belongs to the tensor of before.
void TiedWeight::agree_again(ProcessGroup& group) {
  agreed_holders(parameter_, group);
  agreed_ = parameter_;
  before_.reset();
  take_first();
}

// All holders call it together; other ranks do nothing.
void TiedWeight::take_first() {
  memory_.remember();
  if (!holders_)
    return;
  const NoGradGuard no_grad;
  holders_->broadcast(parameter_, 0);
}

// A frozen weight has no gradients, and one with a single holder has nothing to sum.
void TiedWeight::begin_step() {
  if (holders_ && parameter_.requires_grad())
    before_ = std::exchange(parameter_.mutable_grad(), {});
}

// All holders call it together; a holder without a gradient adds zeros.
void TiedWeight::sum_gradients() {
  if (!holders_ || !parameter_.requires_grad())
    return;
  const NoGradGuard no_grad;
  if (!parameter_.grad().defined())
    parameter_.mutable_grad() = at::zeros_like(parameter_);
  require_dense(parameter_, "of a tied weight", *holders_);
  holders_->all_reduce(parameter_.grad());
  if (before_.defined())
    parameter_.mutable_grad().add_(std::exchange(before_, {}));
}

}  // namespace muster
