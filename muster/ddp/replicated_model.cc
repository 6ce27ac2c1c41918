// The ranks exchange descriptions of their models and compare them; then rank 0's values are
// broadcast. A parameter's identity (its tensor, shape, accumulator) tells at every forward whether
// it may have got values that the other ranks do not have.
#include "muster/ddp/replicated_model.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <map>
#include <string>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/failure.h"
#include "muster/ddp/broadcast_values.h"
#include "muster/ddp/model_description.h"
#include "muster/ddp/reducer_setup.h"
#include "muster/optim/parts.h"

namespace muster {

namespace {

// Python's DDP broadcasts parameters and buffers in parts of this size.
constexpr size_t kBroadcastBytes = size_t{250} * 1024 * 1024;

std::map<const TensorImpl*, const ParameterIdentity*> by_tensor(
    const ParameterIdentities& identities) {
  std::map<const TensorImpl*, const ParameterIdentity*> found;
  for (const ParameterIdentity& identity : identities)
    found[identity.tensor] = &identity;
  return found;
}

std::string describe_hook(const Hook& hook) {
  return hook ? cat("\nhook: ", hook.name()) : "";
}

}  // namespace

ReplicatedModel::ReplicatedModel(ModelSourcePtr model,
                                 ProcessGroup group,
                                 const DdpOptions& options)
    : model_(without_ignored(std::move(model), options.ignored_parameters)),
      group_(std::move(group)),
      options_(options) {
  check_placement(*model_, group_, options);
  if (any_trained(parameter_identities(*model_)))
    return;
  throw invalid_argument(
      "DistributedDataParallel: expected a model with at least one parameter that requires a "
      "gradient, got none (rank ",
      group_.job_rank(),
      "); call a model that nobody trains, such as a teacher, without "
      "DistributedDataParallel, or unfreeze a parameter before you wrap it");
}

void ReplicatedModel::gather() {
  if (options_.init_sync)
    descriptions_ = group_.all_gather_bytes(
        cat(describe_model(*model_), describe_hook(options_.hook)), cat("of model ", gathered_++));
}

void ReplicatedModel::take() {
  Tensors all;
  model_->for_each_parameter([&](const Tensor& tensor) { all.push_back(tensor); });
  optim::refuse_other_parts("DistributedDataParallel", all, group_.job_ranks(), group_.job_rank());
  if (!options_.init_sync)
    return;
  check_same_model(descriptions_, group_);
  broadcast(new_parameters());
  if (identities_.empty())
    broadcast(buffers());
}

// The earlier identities go first, and with them the accumulators that they hold.
void ReplicatedModel::record() {
  identities_.clear();
  kept_.clear();
  model_->for_each_parameter([&](const Tensor& tensor) { kept_.push_back(tensor); });
  trained_ = trained_parameters(*model_);
  identities_ = parameter_identities(*model_);
}

Tensors ReplicatedModel::new_parameters() const {
  const auto known = by_tensor(identities_);
  Tensors found;
  model_->for_each_parameter([&](const Tensor& tensor) {
    const ParameterIdentity* const before = find_or(known, tensor.unsafeGetTensorImpl());
    if (before == nullptr || !before->same_values(identity_of(tensor)))
      found.push_back(tensor.detach());
  });
  return found;
}

ReplicatedModel::Change ReplicatedModel::look() const {
  const auto now = parameter_identities(*model_);
  if (!any_trained(now))
    return Change::all_frozen;
  if (now == identities_)
    return Change::none;
  return only_freezes(now) ? Change::none : Change::some;
}

// Whether the present Reducer can go on although parameters were frozen: with
// find_unused_parameters a frozen one counts as unused. (A sparse gradient cannot be left out.)
bool ReplicatedModel::only_freezes(const ParameterIdentities& now) const {
  const bool finds_unused = options_.find_unused_parameters && !options_.static_graph;
  const auto& sparse = trained_.sparse;
  if (!finds_unused || contains(sparse, true))
    return false;
  const auto known = by_tensor(identities_);
  return all_of(now, [&](const ParameterIdentity& identity) {
    const ParameterIdentity* const before = find_or(known, identity.tensor);
    return before != nullptr && before->same_values(identity) &&
           (before->trained || !identity.trained);
  });
}

// The buffers have versions of their own here: a graph that has saved a buffer stays valid when a
// broadcast changes it before the next forward.
Tensors ReplicatedModel::buffers() const {
  return mapped(model_->buffers(),
                [](const NamedTensor& buffer) { return buffer.tensor.variable_data(); });
}

void ReplicatedModel::broadcast(const Tensors& tensors, int root) {
  if (tensors.empty() || group_.size() == 1)
    return;
  translate_failures(cat("DistributedDataParallel: broadcast from rank ",
                         group_.job_rank(root),
                         " (rank ",
                         group_.job_rank(),
                         ")"),
                     [&] {
                       const NoGradGuard no_grad;
                       group_.watch_stream("broadcast of a model", /*number=*/-1, [&] {
                         c10d::broadcast_coalesced(group_.c10d(), tensors, kBroadcastBytes, root);
                       });
                     });
}

void ReplicatedModel::broadcast_all(int root) {
  broadcast(mapped(kept_, &Tensor::detach), root);
  broadcast(buffers(), root);
}

// The buffers of a group of one are not even listed.
void ReplicatedModel::broadcast_buffers(int root) {
  if (group_.size() > 1)
    broadcast_values(buffers(), group_, root);
}

}  // namespace muster
