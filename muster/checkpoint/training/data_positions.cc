// Numbers of a saved state are doubles, which hold the counts of samples exactly.
#include "muster/checkpoint/training/data_positions.h"

#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

SavedState state_of(const DataPosition& position) {
  SavedState state;
  state.numbers = {{"epoch", as_number(position.epoch)},
                   {"consumed", as_number(position.consumed)},
                   {"dataset_size", as_number(position.dataset_size)},
                   {"step", as_number(position.step)},
                   {"order", as_number(position.order)},
                   {"samples", as_number(position.samples)}};
  return state;
}

// Older states have no count of samples; theirs is that of whole epochs.
DataPosition data_position_of(const std::string& owner, const SavedState& state) {
  DataPosition position{.epoch = state.whole_number(owner, "epoch"),
                        .consumed = state.whole_number(owner, "consumed"),
                        .dataset_size = state.whole_number(owner, "dataset_size"),
                        .step = state.whole_number(owner, "step"),
                        .order = state.whole_number(owner, "order")};
  position.samples = state.numbers.contains("samples")
                         ? state.whole_number(owner, "samples")
                         : position.epoch * position.dataset_size + position.consumed;
  return position;
}

void add_global_batch(const GlobalBatch& batch, SavedState* state) {
  state->numbers["global_batch"] = as_number(batch.samples);
  state->numbers["ranks"] = as_number(batch.ranks);
}

void tell_other_global_batch(const std::string& owner,
                             const SavedState& saved,
                             const GlobalBatch& now) {
  if (!saved.numbers.contains("global_batch") || !saved.numbers.contains("ranks"))
    return;
  const GlobalBatch then{.samples = saved.whole_number(owner, "global_batch"),
                         .ranks = saved.whole_number(owner, "ranks")};
  if (then.samples == now.samples || then.samples == 0 || now.samples == 0)
    return;
  const auto shown = [](const GlobalBatch& batch) {
    return cat(batch.samples, " samples (", batch.ranks, batch.ranks == 1 ? " rank)" : " ranks)");
  };
  log_warning("resume: the global batch of '",
              owner,
              "' was ",
              shown(then),
              " and is ",
              shown(now),
              " now; give each rank another batch size to keep it, or fit the learning rate to it");
}

TrainingPosition training_position(int64_t step, const DataPosition& position) {
  return {.step = step,
          .epoch = position.epoch,
          .epoch_samples = position.consumed,
          .samples_seen = position.samples,
          .dataset_size = position.dataset_size};
}

}  // namespace muster
