// The store of a training that is sharded over the ranks. On the disk each rank writes its part
// into a folder that all see. In memory each rank keeps its part and that of a neighbour
// (kept_shards.h), from which a rank that was replaced gets it back.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/training/kept_shards.h"
#include "muster/checkpoint/training/stores.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

// The tensors stay the training's own; KeptShards copies them.
NamedTensors tensors_by_name(const TensorPieces& pieces) {
  NamedTensors tensors;
  for (const TensorPiece& piece : pieces)
    tensors.emplace(piece.name, piece.tensor.detach());
  return tensors;
}

// The kept tensor of a piece. Throws: invalid_argument if this rank kept another one.
const Tensor& kept_tensor(const NamedTensors& kept, const TensorPiece& piece) {
  const Tensor* const found = value_at(kept, piece.name);
  if (found != nullptr && found->numel() == piece.tensor.numel() &&
      found->scalar_type() == piece.tensor.scalar_type())
    return *found;
  throw invalid_argument("checkpoints: expected ",
                         plural(piece.tensor.numel(), "element"),
                         " of '",
                         piece.name,
                         "' in memory, as this rank has, got ",
                         found != nullptr ? cat(found->numel(), " of another part") : "none",
                         "; divide the model as before");
}

// An optimizer's tensors with the shapes that they have undivided, which are those of the
// parameters they belong to.
TensorEntries whole_entries(const NamedTensors& moments, const TensorPieces& parameters) {
  TensorEntries entries;
  for (const auto& [name, tensor] : moments) {
    const auto owner = name.substr(0, name.rfind('.'));
    const auto parameter = std::ranges::find(parameters, owner, &TensorPiece::name);
    const bool is_divided = tensor.dim() > 0 && parameter != parameters.end();
    const Int64s shape = is_divided ? parameter->shape : tensor.sizes().vec();
    entries[name] = tensor_entry(tensor.scalar_type(), shape);
  }
  return entries;
}

// Tells why no version is whole, for the warning.
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

// Checks the kept optimizer and builds its state, which the function that is returned installs.
// Returns nothing where none is wanted or kept.
InstallState prepare_kept_optimizer(const ShardedState& mine, const CheckpointImage& image) {
  if (!mine.optimizer || !image.optimizer)
    return {};
  const NamedTensors& moments = image.optimizer->tensors;
  const auto fetch = [&](TensorPiece& piece) {
    piece.tensor.copy_(kept_tensor(moments, piece));
  };
  return prepare_optimizer(mine.optimizer->parameters,
                           *mine.optimizer->optimizer,
                           image.optimizer->description,
                           whole_entries(moments, mine.optimizer->parameters),
                           fetch);
}

}  // namespace

// A delegating optimizer's options are the outer one's, and the part is what is saved.
std::string ShardedStore::save(const SaveOptions& options, int64_t step) {
  training().models().options_to_part();
  ShardedState state = training().sharded_state();
  state.parts = training().saved_parts();
  const bool background = this->options().background;
  const std::string path =
      writer_.start(options, state, training().position_after(step), group(), background);
  if (!background)
    writer_.finish(group());
  return path;
}

void ShardedStore::finish() {
  writer_.finish(group());
}

std::optional<LoadedCheckpoint> ShardedStore::load(const LoadOptions& load, bool may_begin_anew) {
  auto loaded = load_latest_sharded(
      options().folder, training().sharded_state(may_begin_anew), group(), load);
  if (loaded)
    training().models().options_from_part();
  return loaded;
}

// An image of pieces holds this rank's elements under the names of the whole tensors.
void ShardedStore::keep(int64_t step, const TrainingBranch& branch) {
  if (!options().in_memory_of_neighbours)
    return say_that_nothing_is_kept();
  const Span span("keep in memory", Category::checkpoint);
  const NoGradGuard no_grad;
  training().models().options_to_part();
  const ShardedState state = training().sharded_state();
  KeptState kept{.image = {.model = tensors_by_name(state.model),
                           .parts = training().saved_parts(),
                           .position = {.step = step},
                           .world_size = group().size()},
                 .rank = group().rank(),
                 .branch = branch};
  // Averages of the weights are kept in the same pieces as the model.
  for (const auto& part : state.parts_in_pieces)
    kept.image.parts.merge(tensors_by_name(part.pieces));
  if (state.optimizer) {
    const OptimizerPieces pieces =
        optimizer_pieces(state.optimizer->parameters, *state.optimizer->optimizer);
    kept.image.optimizer = OptimizerSnapshot{.description = pieces.description,
                                             .tensors = tensors_by_name(pieces.pieces)};
  }
  kept_by_process<KeptShards>(options().folder, group().rank()).keep(kept, group());
}

void ShardedStore::say_that_nothing_is_kept() {
  if (std::exchange(has_said_that_nothing_is_kept_, true) || group().rank() != 0)
    return;
  log_info(
      "checkpoints: a model that is divided over ranks is not kept in memory; when a rank is "
      "replaced, all ranks go on from the newest checkpoint on the disk (.in_memory_of_neighbours "
      "keeps the model in memory)");
}

// Every rank checks its shard before any rank changes its model.
std::optional<RestoredState> ShardedStore::restore_kept() {
  if (!options().in_memory_of_neighbours)
    return std::nullopt;
  KeptShards& shards = kept_by_process<KeptShards>(options().folder, group().rank());
  const auto kept = shards.recover(group());
  if (!kept) {
    if (group().rank() == 0)
      log_warning("checkpoints: ",
                  why_not_in_memory(shards.ranks_then(), group().size()),
                  "; all go on from the newest checkpoint on the disk");
    return std::nullopt;
  }
  const NoGradGuard no_grad;
  const ShardedState mine = training().sharded_state();
  const CheckpointImage& image = kept->image;
  InstallState restore_optimizer_state;
  Peers(group()).together([&] {
    for (const TensorPiece& piece : mine.model)
      kept_tensor(image.model, piece);  // throws if there is none
    training().check_parts(entries_of(image.parts), /*may_begin_anew=*/false);
    restore_optimizer_state = prepare_kept_optimizer(mine, image);
  });
  for (const TensorPiece& piece : mine.model) {
    Tensor tensor = piece.tensor;
    tensor.copy_(kept_tensor(image.model, piece).view(tensor.sizes()));
  }
  if (restore_optimizer_state)
    restore_optimizer_state();
  training().models().options_from_part();
  return RestoredState{.state = *kept,
                       .name = cat("step ", image.position.step, " in memory, each rank its part")};
}

}  // namespace muster
