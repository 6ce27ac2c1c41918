// The gradients that a pipeline must reduce: those of a stage over its replicas, in a bucket for
// each type, and those of tied weights over the ranks that have a copy. A tied weight's gradients
// of earlier steps are set aside during a step (before_), since they are summed over the ranks
// already.
#include "muster/parallel/pipeline/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/parallel/pipeline/messages.h"

namespace muster {

namespace {

// Empty on a rank that does not have the weight.
std::string form_of_tied(const at::Tensor& parameter) {
  if (!parameter.defined())
    return "";
  const std::string form = to_text(form_of(parameter));
  return parameter.requires_grad() ? form : cat(form, ", frozen");
}

}  // namespace

ParameterMemory::ParameterMemory(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)) {
  remember();
}

// A weak pointer holds no memory, and no other storage gets its address.
void ParameterMemory::remember() {
  known_.clear();
  for (const at::Tensor& parameter : parameters_)
    known_.emplace_back(parameter.storage().getWeakStorageImpl());
}

bool ParameterMemory::is_other() const {
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].storage().unsafeGetStorageImpl() != known_[i]._unsafe_get_target())
      return true;
  return false;
}

// All replicas construct it together. They start from rank 0's values, so that equal gradients keep
// them equal.
StageAverage::StageAverage(const std::vector<at::Tensor>& parameters, ProcessGroup replicas)
    : replicas_(std::move(replicas)), memory_(parameters) {
  take_first();
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad())
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
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : memory_.parameters())
    replicas_.broadcast(parameter, 0);
  memory_.remember();
}

// A parameter without a gradient counts as zeros: another replica may have one.
void StageAverage::start() {
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    std::vector<at::Tensor> gradients;
    for (at::Tensor& parameter : bucket.parameters) {
      if (!parameter.grad().defined())
        parameter.mutable_grad() = at::zeros_like(parameter);
      gradients.push_back(parameter.grad().reshape({-1}));
    }
    bucket.flat = at::cat(gradients);
    bucket.work = replicas_.all_reduce_async(bucket.flat, ReduceOp::avg);
  }
}

// It waits for the collectives that start() has begun, and puts the means into the gradients.
void StageAverage::finish() {
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    bucket.work->wait();
    int64_t at = 0;
    for (const at::Tensor& parameter : bucket.parameters) {
      const at::Tensor part = bucket.flat.narrow(0, at, parameter.numel());
      parameter.grad().copy_(part.view(parameter.sizes()));
      at += parameter.numel();
    }
    bucket.flat.reset();
    bucket.work.reset();
  }
}

// All ranks of the pipeline construct it together; one without the weight gives an undefined
// tensor.
TiedWeight::TiedWeight(at::Tensor parameter, const std::string& name, ProcessGroup& group)
    : parameter_(std::move(parameter)),
      memory_(parameter_.defined() ? std::vector{parameter_} : std::vector<at::Tensor>{}) {
  const std::vector<std::string> forms =
      group.all_gather_bytes(form_of_tied(parameter_), "a tied weight");
  std::vector<int> holders =
      filtered_indices<int>(group.size(), [&](int rank) { return !forms[rank].empty(); });
  if (holders.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        "pipeline: expected a tied weight on some rank, got none on any; give it where it is used");
  }
  const std::string& first = forms[holders[0]];
  for (const int rank : holders) {
    if (forms[rank] == first)
      continue;
    throw Error(ErrorCode::invalid_argument,
                cat("pipeline: expected tied weights of one shape and type, got ",
                    first,
                    " on rank ",
                    group.job_rank(holders[0]),
                    " and ",
                    forms[rank],
                    " on rank ",
                    group.job_rank(rank),
                    "; tie copies of one weight"));
  }
  // Every rank sees all names in the ranks' order, so all agree on the first.
  for (const std::string& other : group.all_gather_bytes(name, "a tied weight's name"))
    if (!other.empty() && std::find(names_.begin(), names_.end(), other) == names_.end())
      names_.push_back(other);
  if (holders.size() == 1)
    return;
  // Every rank of `group` takes part, though only holders get the group.
  holders_ = group.new_group(holders);
  take_first();
}

// All holders call it together; other ranks do nothing.
void TiedWeight::take_first() {
  memory_.remember();
  if (!holders_)
    return;
  const at::NoGradGuard no_grad;
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
  const at::NoGradGuard no_grad;
  if (!parameter_.grad().defined())
    parameter_.mutable_grad() = at::zeros_like(parameter_);
  holders_->all_reduce(parameter_.grad());
  if (before_.defined())
    parameter_.mutable_grad().add_(std::exchange(before_, {}));
}

}  // namespace muster
