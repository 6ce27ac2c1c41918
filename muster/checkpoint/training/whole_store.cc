// The store of a training that every rank has whole. On the disk it is one checkpoint of rank 0. In
// memory every rank keeps a copy of its own state, and of what rank 0 has otherwise, so that any
// rank can take the place of any other.
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/image.h"
#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/training/other_values.h"
#include "muster/checkpoint/training/stores.h"
#include "muster/checkpoint/training/unlike_rank0.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

// Copies in place, so that the model's tensors stay on their devices.
void copy_into(const Module& model, const NamedTensors& tensors) {
  const NoGradGuard no_grad;
  for (auto& [name, tensor] : model_tensors(model))
    tensor.copy_(tensors.at(name));
}

// The tensors that may differ between ranks by chance. Parameters are the same on all ranks, or
// meant to differ.
NamedTensors buffers_of(const Module& model) {
  NamedTensors buffers;
  for (const auto& item : model.named_buffers())
    if (item.value().defined())
      buffers.emplace(item.key(), item.value());
  return buffers;
}

// Says who got the state from whom: ", from rank 2 to ranks 0, 1". Empty if every rank had it.
std::string way_of(const KeptWhere& where) {
  if (where.others.empty())
    return "";
  const char* const ranks = where.others.size() == 1 ? " to rank " : " to ranks ";
  return cat(", from rank ", where.source, ranks, join(where.others, ", "));
}

}  // namespace

// A background save has something to copy on rank 0 alone.
std::string WholeStore::save(const SaveOptions& options, int64_t step) {
  TrainingState state = training().whole_state();
  state.parts = training().saved_parts();
  warn_of_own_values(state.model);
  if (!this->options().background)
    return save_checkpoint(options, state, training().position_after(step), group());
  Peers(group()).on_rank0([&] {
    writer_.start(options, image_of(state, training().position_after(step), group().size()));
  });
  return cat(options.directory, "/step-", step);
}

// Parameters may differ where a program means them to, and only rank 0's are in the checkpoint.
void WholeStore::warn_of_own_values(const Module& model) {
  if (has_warned_of_own_values_ || group().size() == 1)
    return;
  const auto others = other_values_than_rank0(group(), model);
  if (!others)
    return;
  has_warned_of_own_values_ = true;
  if (group().rank() != 0)
    return;
  log_warning(
      "checkpoints: expected parameters that are the same on every rank, got other values of '",
      others->parameter,
      "' on rank ",
      others->rank,
      ": only rank 0's are saved, and a resume gives them to every rank; where each rank trains "
      "its own, add own_pieces(*net), or an object with its own parameters by add_per_rank");
}

void WholeStore::finish() {
  if (options().background)
    Peers(group()).on_rank0([&] { writer_.finish(); });
}

// Whether the first checkpoint that may be loaded, as rank 0 sees it, is a sharded one. Damaged
// ones are passed over: the load tells of them.
bool WholeStore::finds_sharded(const LoadOptions& load) {
  const auto newest_is_sharded = [&] {
    for (const auto& saved : list_by_saving(options().folder, load.only, load.accept)) {
      try {
        const Manifest manifest = read_manifest(saved.path);
        if (!load.accept || load.accept(manifest))
          return is_sharded(manifest);
      } catch (const Error&) {
        continue;
      }
    }
    return false;
  };
  std::string found;
  Peers(group()).on_rank0([&] { found = newest_is_sharded() ? "yes" : ""; });
  Peers(group()).share(found);
  return !found.empty();
}

// A training that is no longer sharded may go on from a sharded checkpoint: it is read as one whose
// pieces are whole.
std::optional<LoadedCheckpoint> WholeStore::load(const LoadOptions& load, bool may_begin_anew) {
  if (finds_sharded(load))
    return load_latest_sharded(
        options().folder, training().sharded_state(may_begin_anew), group(), load);
  return load_latest_checkpoint(options().folder, training().whole_state(), group(), load);
}

void WholeStore::keep(int64_t step, const TrainingBranch& branch) {
  const Span span("keep in memory", Category::checkpoint);
  const NoGradGuard no_grad;
  TrainingState state = training().whole_state();
  state.parts = training().saved_parts();
  KeptState kept{.image = image_of(state, {.step = step}, group().size()),
                 .rank = group().rank(),
                 .branch = branch};
  // All that asks other ranks comes first: what is kept of the step before stays until this one is
  // whole.
  kept.model_of_rank0 = tensors_unlike_rank0(group(), buffers_of(state.model));
  kept.parts_of_rank0 = tensors_unlike_rank0(group(), state.parts);
  group().wait_for_gpu();
  kept_by_process<KeptStates>(options().folder, group().rank()).keep(kept);
}

// Throws if the kept state does not fit the training; nothing has been changed then.
void WholeStore::check_kept(const TrainingState& mine,
                            const CheckpointImage& image,
                            const std::string& name) {
  check_model(mine.model, entries_of(image.model), name);
  training().check_parts(entries_of(image.parts), /*may_begin_anew=*/false);
  if (mine.optimizer == nullptr)
    return;
  if (!image.optimizer) {
    throw invalid_argument(
        "checkpoints: expected an optimizer in ", name, ", got none; add what was added before");
  }
  check_optimizer(mine.model,
                  *mine.optimizer,
                  image.optimizer->description,
                  entries_of(image.optimizer->tensors));
}

// A state that another rank kept, or another number of ranks, is taken over as rank 0 had it.
std::optional<RestoredState> WholeStore::restore_kept() {
  KeptStates& kept = kept_by_process<KeptStates>(options().folder, group().rank());
  const auto where = find_newest_kept(group(), kept);
  if (!where)
    return std::nullopt;
  share_newest_kept(group(), *where, kept);
  const int ranks_then = kept.newest()->image.world_size;
  if (ranks_then != group().size() || kept.newest()->rank != group().rank()) {
    KeptState now = as_rank0_had_it(*kept.newest());
    now.image.world_size = group().size();
    now.rank = group().rank();
    kept.keep(now);
  }
  const KeptState& state = *kept.newest();
  const auto name = cat("step ", state.image.position.step, " in memory");
  const TrainingState mine = training().whole_state();
  Peers(group()).together([&] { check_kept(mine, state.image, name); });
  if (mine.optimizer != nullptr)
    restore_optimizer(mine.model, *mine.optimizer, *state.image.optimizer);
  copy_into(mine.model, state.image.model);
  const std::string of_others =
      ranks_then == group().size() ? "" : cat(" of ", ranks_then, " ranks");
  return RestoredState{.state = state, .name = name + of_others + way_of(*where)};
}

}  // namespace muster
