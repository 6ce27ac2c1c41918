#include "muster/parallel/pipeline/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/parallel/pipeline/messages.h"

namespace muster {

StageAverage::StageAverage(const std::vector<at::Tensor>& parameters, ProcessGroup replicas)
    : replicas_(std::move(replicas)) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    replicas_.broadcast(parameter, 0);
    if (!parameter.requires_grad())
      continue;
    size_t i = 0;
    while (i < buckets_.size() &&
           buckets_[i].parameters[0].scalar_type() != parameter.scalar_type())
      ++i;
    if (i == buckets_.size())
      buckets_.push_back({.parameters = {}});
    buckets_[i].parameters.push_back(parameter);
  }
}

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

TiedWeight::TiedWeight(at::Tensor parameter, const std::string& name, ProcessGroup& group)
    : parameter_(std::move(parameter)) {
  const std::string mine = !parameter_.defined() ? ""
                           : parameter_.requires_grad()
                               ? to_text(form_of(parameter_))
                               : cat(to_text(form_of(parameter_)), ", frozen");
  const std::vector<std::string> forms = group.all_gather_bytes(mine, "a tied weight");
  std::vector<int> holders;
  for (int rank = 0; rank < group.size(); ++rank)
    if (!forms[static_cast<size_t>(rank)].empty())
      holders.push_back(rank);
  if (holders.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        "pipeline: expected a tied weight on some rank, got none on any; give it where it is used");
  }
  const std::string& first = forms[static_cast<size_t>(holders[0])];
  for (const int rank : holders) {
    if (forms[static_cast<size_t>(rank)] == first)
      continue;
    throw Error(ErrorCode::invalid_argument,
                cat("pipeline: expected tied weights of one shape and type, got ",
                    first,
                    " on rank ",
                    group.job_rank(holders[0]),
                    " and ",
                    forms[static_cast<size_t>(rank)],
                    " on rank ",
                    group.job_rank(rank),
                    "; tie copies of one weight"));
  }
  for (const std::string& other : group.all_gather_bytes(name, "a tied weight's name"))
    if (!other.empty() && std::find(names_.begin(), names_.end(), other) == names_.end())
      names_.push_back(other);
  if (holders.size() == 1)
    return;
  holders_ = group.new_group(holders);
  if (!holders_)
    return;
  const at::NoGradGuard no_grad;
  holders_->broadcast(parameter_, 0);
}

void TiedWeight::begin_step() {
  if (holders_ && parameter_.requires_grad())
    before_ = std::exchange(parameter_.mutable_grad(), {});
}

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
