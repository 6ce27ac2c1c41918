// Parameters may be frozen, unfrozen or replaced in the midst of a training. The averages are then
// made anew, on all replicas in the same step: what they left out would be each replica's own.
#include "muster/parallel/pipeline/replicas.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/gradient_reducer.h"
#include "muster/ddp/renormalized.h"
#include "muster/optim/each_once.h"
#include "muster/optim/parts.h"
#include "muster/parallel/pipeline/messages.h"
#include "muster/parallel/pipeline/replica_buffers.h"

namespace muster {

Replicas::Replicas(const PipelineStages& stages, ProcessGroup group, bool broadcasts_buffers)
    : stages_(stages), group_(std::move(group)), broadcasts_buffers_(broadcasts_buffers) {
  for (const PipelineStage& stage : stages_)
    warn_of_renormalized("pipeline", renormalized_weights(*stage.module), group_);
  take_parameters();
}

// A parameter that several stages of this rank share is averaged once, when all of them are done.
void Replicas::take_parameters() {
  require_agreement(group_, "pipeline", "", terms());
  known_ = parameters_now();
  optim::refuse_other_parts(
      "pipeline", mapped(known_, &Known::parameter), group_.job_ranks(), group_.job_rank());
  averages_.clear();
  shared_.reset();
  std::map<const void*, int> uses;
  for (const PipelineStage& stage : stages_)
    for (const Tensor& parameter : distinct_parameters(*stage.module))
      ++uses[parameter.unsafeGetTensorImpl()];
  Tensors shared;
  for (const PipelineStage& stage : stages_) {
    Tensors own;
    for (const Tensor& parameter : distinct_parameters(*stage.module)) {
      int& left = uses[parameter.unsafeGetTensorImpl()];
      if (left == 1) {
        own.push_back(parameter);
      } else if (left > 1) {
        shared.push_back(parameter);
        left = 0;  // taken
      }
    }
    averages_.emplace_back(own, group_);
  }
  if (!shared.empty())
    shared_.emplace(shared, group_);
  if (broadcasts_buffers_ && !std::exchange(has_compared_buffers_, true))
    warn_of_other_buffers(stages_, group_);
  take_buffers();
}

void Replicas::take_buffers() {
  if (broadcasts_buffers_)
    take_first_buffers(stages_, group_);
}

// What was frozen after a step without a reduction still has gradients.
std::vector<Replicas::Known> Replicas::parameters_now() const {
  std::vector<Known> now;
  for (const PipelineStage& stage : stages_)
    for (const Tensor& parameter : distinct_parameters(*stage.module))
      now.push_back({.parameter = parameter, .has_gradients = may_have_gradient(parameter)});
  return now;
}

Terms Replicas::terms() const {
  Terms all;
  for (const PipelineStage& stage : stages_)
    for (const auto& item : stage.module->named_parameters())
      all.push_back({cat("parameter '", item.key(), "'"),
                     cat(tensor_text(item.value()),
                         may_have_gradient(item.value()) ? ", trained" : ", frozen")});
  all.push_back({"broadcast_buffers", broadcasts_buffers_ ? "true" : "false"});
  if (broadcasts_buffers_)
    append_all(all, terms_of_buffers(stages_));
  return all;
}

std::vector<StageAverage*> Replicas::all() {
  std::vector<StageAverage*> found =
      mapped(averages_, [](StageAverage& average) { return &average; });
  if (shared_)
    found.push_back(&*shared_);
  return found;
}

// A replica's file may have other values than the first's, which equal gradients would keep
// different.
void Replicas::follow() {
  const bool has_others =
      !std::ranges::equal(known_, parameters_now(), [](const Known& one, const Known& other) {
        return one.parameter.is_same(other.parameter) && one.has_gradients == other.has_gradients;
      });
  const bool has_other_memory =
      any_of(all(), [](const StageAverage* some) { return some->has_other_memory(); });
  Tensor found = at::full({2}, 0, kLong);
  found[0] = has_others ? 1 : 0;
  found[1] = has_other_memory ? 1 : 0;
  group_.all_reduce(found, ReduceOp::max);
  if (found[0].item<int64_t>() != 0)
    return take_parameters();
  if (found[1].item<int64_t>() == 0)
    return;
  for (StageAverage* some : all())
    some->take_first();
  take_buffers();
}

void Replicas::finish() {
  if (shared_)
    shared_->start();
  for (StageAverage* some : all())
    some->finish();
  take_buffers();
}

void Replicas::compare_outside(Tensors leaves) {
  if (looks_outside()) {
    std::set<const void*> own;
    for (const Known& known : known_)
      own.insert(known.parameter.unsafeGetTensorImpl());
    outside_.look(optim::each_once(leaves),
                  [&](const Tensor& leaf) { return own.contains(leaf.unsafeGetTensorImpl()); });
  }
  outside_.compare(group_);
}

}  // namespace muster
