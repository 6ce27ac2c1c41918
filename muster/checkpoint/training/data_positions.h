// The training position in the data, as part of a checkpoint, and as its manifest shows it.
#pragma once

#include <cstdint>
#include <string>

#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/data/loader_options.h"

namespace muster {

SavedState state_of(const DataPosition& position);
// `owner` is the part's name, for messages. Checkpoints from versions that did not count samples
// get the samples of whole epochs. Throws: invalid_argument for a state that lacks a number.
DataPosition data_position_of(const std::string& owner, const SavedState& state);

// What a step was made of when a position was saved. 0: unknown.
struct GlobalBatch {
  int64_t samples = 0;  // of all ranks together
  int64_t ranks = 0;
};

// As a part of the state of a loader that knows it.
void add_global_batch(const GlobalBatch& batch, SavedState* state);
// Warns if a step has another number of samples now than it had when the state was saved. Older
// states do not say.
void tell_other_global_batch(const std::string& owner,
                             const SavedState& saved,
                             const GlobalBatch& now);

// The position after `step` steps, as a manifest has it.
TrainingPosition training_position(int64_t step, const DataPosition& position);

}  // namespace muster
