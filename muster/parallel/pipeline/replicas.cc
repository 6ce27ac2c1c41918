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
#include "muster/base/error.h"
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

// All take the first replica's values, since equal gradients would keep others different. What
// another alone has loaded would be lost.
void Replicas::follow() {
  const std::vector<Known> now = parameters_now();
  const bool has_replaced =
      !std::ranges::equal(known_, now, [](const Known& one, const Known& other) {
        return one.parameter.is_same(other.parameter);
      });
  const bool has_others =
      has_replaced ||
      !std::ranges::equal(known_, now, {}, &Known::has_gradients, &Known::has_gradients);
  const bool has_new_values = has_replaced || any_of(all(), [](const StageAverage* some) {
                                return some->has_other_memory();
                              });
  Tensor found = at::full({3}, 0, kLong);
  found[0] = has_others ? 1 : 0;
  found[1] = has_new_values ? 1 + group_.job_rank() : 0;
  found[2] = has_new_values && group_.rank() == 0 ? 1 : 0;
  group_.all_reduce(found, ReduceOp::max);
  const auto one_past_loaded = found[1].item<int64_t>();
  if (one_past_loaded != 0 && found[2].item<int64_t>() == 0)
    refuse_values_of(one_past_loaded - 1);
  if (found[0].item<int64_t>() != 0)
    return take_parameters();
  if (one_past_loaded == 0)
    return;
  for (StageAverage* some : all())
    some->take_first();
  take_buffers();
}

void Replicas::refuse_values_of(int64_t job_rank) const {
  throw invalid_argument(
      "pipeline: expected new values of a stage (torch::load, replace_module) on the first of its "
      "replicas, whose values all take, got them on rank ",
      job_rank,
      " and none on rank ",
      group_.job_rank(0),
      " (rank ",
      group_.job_rank(),
      "); load on all replicas");
}

void Replicas::start(int stage) {
  samples_.take_gradients(stages_[stage].module->parameters());
  averages_[stage].start();
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

void Replicas::compare_samples() {
  samples_.compare(mapped(known_, &Known::parameter), group_);
}

}  // namespace muster
