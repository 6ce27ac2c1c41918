#include "muster/ddp/replicated_model.h"

#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/failure.h"
#include "muster/ddp/model_description.h"
#include "muster/ddp/reducer_setup.h"

namespace muster {

namespace {

constexpr size_t kBroadcastBytes =
    size_t{250} * 1024 * 1024;  // as Python's DDP broadcasts parameters and buffers

}  // namespace

ReplicatedModel::ReplicatedModel(std::shared_ptr<torch::nn::Module> model, ProcessGroup group,
                                 const DdpOptions& options)
    : model_(std::move(model)), group_(std::move(group)), options_(options) {
  check_placement(*model_, group_, options);
  if (!trained_identities(*model_).empty()) return;
  throw Error(ErrorCode::invalid_argument,
              "DistributedDataParallel: expected a model with at least one parameter that requires a "
              "gradient, got none");
}

void ReplicatedModel::take() {
  if (options_.init_sync) {
    check_same_model(*model_, group_, cat("of model ", taken_++));
    std::set<const c10::TensorImpl*> shared;
    for (const at::Tensor& tensor : known_) shared.insert(tensor.unsafeGetTensorImpl());
    std::vector<at::Tensor> fresh;
    for (const at::Tensor& tensor : model_->parameters()) {
      if (!shared.contains(tensor.unsafeGetTensorImpl())) fresh.push_back(tensor.detach());
    }
    if (known_.empty()) {
      for (const at::Tensor& buffer : buffers()) fresh.push_back(buffer);
    }
    broadcast(fresh);
  }
  known_ = model_->parameters();
  trained_ = trained_parameters(*model_);
  identities_ = trained_identities(*model_);
}

ReplicatedModel::Change ReplicatedModel::look() const {
  const auto now = trained_identities(*model_);
  if (now == identities_) return Change::none;
  if (now.empty()) return Change::all_frozen;
  return only_freezes(now) ? Change::none : Change::some;
}

// With find_unused_parameters, what is frozen counts as unused. (A sparse gradient cannot be left out.)
bool ReplicatedModel::only_freezes(const std::vector<ParameterIdentity>& now) const {
  const bool finds_unused = options_.find_unused_parameters && !options_.static_graph;
  const auto& sparse = trained_.sparse;
  if (!finds_unused || std::find(sparse.begin(), sparse.end(), true) != sparse.end()) return false;
  std::map<const c10::TensorImpl*, const ParameterIdentity*> mine;
  for (const ParameterIdentity& identity : identities_) mine[identity.tensor] = &identity;
  return std::all_of(now.begin(), now.end(), [&](const ParameterIdentity& identity) {
    const auto found = mine.find(identity.tensor);
    return found != mine.end() && *found->second == identity;
  });
}

std::vector<at::Tensor> ReplicatedModel::buffers() const {
  std::vector<at::Tensor> found;
  for (const at::Tensor& buffer : model_->buffers()) {
    if (buffer.defined()) found.push_back(buffer.detach());
  }
  return found;
}

void ReplicatedModel::broadcast(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || group_.size() == 1) return;
  translate_failures(cat("DistributedDataParallel: broadcast from rank 0 (rank ", group_.rank(), ")"), [&] {
    const at::NoGradGuard no_grad;
    c10d::broadcast_coalesced(group_.c10d(), tensors, kBroadcastBytes, 0);
  });
}

// One broadcast a type, through the group's own calls: there a rank that does something else is found.
void ReplicatedModel::broadcast_buffers() {
  if (group_.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::map<c10::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& buffer : buffers()) by_type[buffer.scalar_type()].push_back(buffer);
  for (const auto& [type, tensors] : by_type) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape(-1));
    const at::Tensor all = at::cat(flat);
    group_.broadcast(all, 0);
    if (group_.rank() == 0) continue;
    int64_t at = 0;
    for (const at::Tensor& tensor : tensors) {
      tensor.copy_(all.slice(0, at, at + tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  }
}

}  // namespace muster
