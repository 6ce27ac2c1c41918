// The part of Checkpoints that keeps states in memory, for jobs whose ranks are replaced in place.
#include <ATen/core/grad_mode.h>

#include "muster/base/error.h"
#include "muster/base/failure_policy.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/checkpoint/training/kept_state.h"
#include "muster/checkpoint/training/unlike_rank0.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

constexpr int64_t kEveryStep = 1;

TensorEntries entries_of(const NamedTensors& tensors) {
  TensorEntries entries;
  for (const auto& [name, tensor] : tensors)
    entries[name] = tensor_entry(tensor.scalar_type(), tensor.sizes().vec());
  return entries;
}

// In place, whatever its device.
void copy_into(const torch::nn::Module& model, const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : model_tensors(model))
    tensor.copy_(tensors.at(name));
}

// Parameters are the same on all ranks, or meant to differ.
NamedTensors buffers_of(const torch::nn::Module& model) {
  NamedTensors buffers;
  for (const auto& item : model.named_buffers())
    if (item.value().defined())
      buffers.emplace(item.key(), item.value());
  return buffers;
}

}  // namespace

int64_t Checkpoints::steps_between_kept() const {
  if (options_.in_memory)
    return *options_.in_memory;
  return failure_policy_from_environment() == FailurePolicy::replace ? kEveryStep : 0;
}

void Checkpoints::keep(int64_t step) {
  if (is_divided())
    return keep_divided(step);
  const Span span("keep in memory", Category::checkpoint);
  const at::NoGradGuard no_grad;
  TrainingState state = training_state();
  state.parts = saved_parts();
  KeptState kept{.image = image_of(state, {.step = step}, group_.size()),
                 .rank = group_.rank(),
                 .goings_back = goings_back_,
                 .abandoned = abandoned_,
                 .model_of_rank0 = {},
                 .parts_of_rank0 = {},
                 .begun_by = begun_by_,
                 .path = path_};
  // All that asks other ranks comes first: what is kept of the step before stays until this one is
  // whole.
  kept.model_of_rank0 = tensors_unlike_rank0(group_, buffers_of(state.model));
  kept.parts_of_rank0 = tensors_unlike_rank0(group_, state.parts);
  KeptStates::of(options_.folder, group_.rank()).keep(kept);
}

// All but models and optimizers.
void Checkpoints::take_over(const KeptState& state) {
  const ReadParts read = [&](const std::string& prefix, const NamedTensors& /*into*/) {
    NamedTensors parts;  // of its own: whoever takes one may change it
    for (const auto& [name, tensor] : state.image.parts)
      if (name.starts_with(prefix))
        parts.emplace(name.substr(prefix.size()), tensor.clone());
    return parts;
  };
  load_parts(read, Place::of_training, /*may_begin_anew=*/false);
  load_parts(read, Place::of_data, /*may_begin_anew=*/false);
  begun_by_ = state.begun_by;
  step_ = last_step_ = state.image.position.step;
  goings_back_ = state.goings_back;
  abandoned_ = state.abandoned;
  path_ = state.path;
}

bool Checkpoints::restore_from_memory() {
  if (steps_between_kept() == 0 || options_.attempt == 0)
    return false;
  return is_divided() ? restore_divided_from_memory() : restore_whole_from_memory();
}

bool Checkpoints::restore_whole_from_memory() {
  KeptStates& kept = KeptStates::of(options_.folder, group_.rank());
  const auto where = find_newest_kept(group_, kept);
  if (!where)
    return false;
  share_newest_kept(group_, *where, kept);
  const int ranks_then = kept.newest()->image.world_size;
  if (ranks_then != group_.size() || kept.newest()->rank != group_.rank()) {
    KeptState now = as_rank0_had_it(*kept.newest());
    now.image.world_size = group_.size();
    now.rank = group_.rank();
    kept.keep(now);
  }
  const KeptState& state = *kept.newest();
  const CheckpointImage& image = state.image;
  const std::string name = cat("step ", kept.newest()->image.position.step, " in memory");
  const TrainingState training = training_state();
  Peers(group_).together([&] {
    check_model(training.model, entries_of(image.model), name);
    check_parts(entries_of(image.parts), /*may_begin_anew=*/false);
    if (training.optimizer == nullptr)
      return;
    if (!image.optimizer)
      throw Error(ErrorCode::invalid_argument,
                  cat("checkpoints: expected an optimizer in ",
                      name,
                      ", got none; add what was added before"));
    check_optimizer(training.model,
                    *training.optimizer,
                    image.optimizer->description,
                    entries_of(image.optimizer->tensors));
  });
  if (training.optimizer != nullptr)
    restore_optimizer(training.model, *training.optimizer, *image.optimizer);
  copy_into(training.model, image.model);
  take_over(state);
  if (group_.rank() == 0)
    log(LogLevel::info,
        cat("resume: ",
            name,
            ranks_then == group_.size() ? "" : cat(" of ", ranks_then, " ranks"),
            where->others.empty() ? ""
                                  : cat(", from rank ",
                                        where->source,
                                        " to rank",
                                        where->others.size() == 1 ? " " : "s ",
                                        join(where->others, ", "))));
  return true;
}

}  // namespace muster
