// The part of Checkpoints that keeps in memory what is divided over ranks, for jobs whose ranks are
// replaced in place.
#include <ATen/core/grad_mode.h>

#include <functional>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/checkpoint/training/kept_shards.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

NamedTensors tensors_by_name(const TensorPieces& pieces) {
  NamedTensors tensors;
  for (const TensorPiece& piece : pieces)
    tensors.emplace(piece.name, piece.tensor.detach());
  return tensors;
}

const at::Tensor& kept_tensor(const NamedTensors& kept, const TensorPiece& piece) {
  const auto found = kept.find(piece.name);
  if (found != kept.end() && found->second.numel() == piece.tensor.numel() &&
      found->second.scalar_type() == piece.tensor.scalar_type())
    return found->second;
  throw Error(ErrorCode::invalid_argument,
              cat("checkpoints: expected ",
                  piece.tensor.numel(),
                  " elements of '",
                  piece.name,
                  "' in memory, as this rank has, got ",
                  found == kept.end() ? "none" : cat(found->second.numel(), " of another part"),
                  "; divide the model as before"));
}

// Of tensors that are divided the whole's shape, which is that of the parameter they belong to.
TensorEntries whole_entries(const NamedTensors& moments, const TensorPieces& parameters) {
  TensorEntries entries;
  for (const auto& [name, tensor] : moments) {
    std::vector<int64_t> shape = tensor.sizes().vec();
    for (const TensorPiece& parameter : parameters)
      if (tensor.dim() > 0 && name.starts_with(parameter.name + "."))
        shape = parameter.shape;
    entries[name] = tensor_entry(tensor.scalar_type(), shape);
  }
  return entries;
}

std::string why_not_in_memory(int ranks_then, int ranks) {
  if (ranks_then == 0 || ranks_then == ranks)
    return "only lost ranks had a part of the model in memory";
  return cat("the parts of the model in memory are those of ",
             plural(ranks_then, "rank"),
             ", and there ",
             ranks == 1 ? "is " : "are ",
             ranks,
             " now");
}

}  // namespace

void Checkpoints::keep_divided(int64_t step) {
  if (!options_.in_memory_of_neighbours)
    return tell_of_divided();
  const Span span("keep in memory", Category::checkpoint);
  const at::NoGradGuard no_grad;
  if (before_save_)
    before_save_();
  const ShardedState state = sharded_state();
  KeptState kept{.image = {.model = tensors_by_name(state.model),
                           .optimizer = {},
                           .parts = saved_parts(),
                           .position = {.step = step},
                           .world_size = group_.size()},
                 .rank = group_.rank(),
                 .goings_back = goings_back_,
                 .abandoned = abandoned_,
                 .model_of_rank0 = {},
                 .parts_of_rank0 = {},
                 .begun_by = begun_by_,
                 .path = path_};
  for (const auto& part : state.parts_in_pieces)
    kept.image.parts.merge(tensors_by_name(part.pieces));
  if (state.optimizer) {
    const OptimizerPieces pieces =
        optimizer_pieces(state.optimizer->parameters, *state.optimizer->optimizer);
    kept.image.optimizer = OptimizerSnapshot{.description = pieces.description,
                                             .tensors = tensors_by_name(pieces.pieces)};
  }
  DividedStates::of(options_.folder, group_.rank()).keep(kept, group_);
}

void Checkpoints::tell_of_divided() {
  if (told_of_divided_)
    return;
  told_of_divided_ = true;
  if (group_.rank() == 0)
    log(LogLevel::info,
        "checkpoints: a model that is divided over ranks is not kept in memory; when a rank is "
        "replaced, all "
        "ranks go on from the newest checkpoint on the disk (.in_memory_of_neighbours keeps the "
        "model in "
        "memory)");
}

bool Checkpoints::restore_divided_from_memory() {
  if (!options_.in_memory_of_neighbours)
    return false;
  DividedStates& states = DividedStates::of(options_.folder, group_.rank());
  const auto kept = states.recover(group_);
  if (!kept) {
    if (group_.rank() == 0)
      log(LogLevel::warn,
          cat("checkpoints: ",
              why_not_in_memory(states.ranks_then(), group_.size()),
              "; all go on from the newest checkpoint on the disk"));
    return false;
  }
  const at::NoGradGuard no_grad;
  const ShardedState state = sharded_state();
  const CheckpointImage& image = kept->image;
  std::function<void()> restore_state;
  Peers(group_).together([&] {
    for (const TensorPiece& piece : state.model)
      kept_tensor(image.model, piece);
    TensorEntries parts;
    for (const auto& [name, tensor] : image.parts)
      parts[name] = tensor_entry(tensor.scalar_type(), tensor.sizes().vec());
    check_parts(parts, /*may_begin_anew=*/false);
    if (!state.optimizer || !image.optimizer)
      return;
    const NamedTensors& moments = image.optimizer->tensors;
    restore_state = prepare_optimizer(
        state.optimizer->parameters,
        *state.optimizer->optimizer,
        image.optimizer->description,
        whole_entries(moments, state.optimizer->parameters),
        [&](TensorPiece& piece) { piece.tensor.copy_(kept_tensor(moments, piece)); });
  });
  for (const TensorPiece& piece : state.model) {
    at::Tensor tensor = piece.tensor;
    tensor.copy_(kept_tensor(image.model, piece).view(tensor.sizes()));
  }
  if (restore_state)
    restore_state();
  if (after_load_)
    after_load_();
  take_over(*kept);
  if (group_.rank() == 0)
    log(LogLevel::info,
        cat("resume: step ", image.position.step, " in memory, each rank its part"));
  return true;
}

}  // namespace muster
