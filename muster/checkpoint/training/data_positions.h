// The training position in the data, as part of a checkpoint, and as its manifest shows it.
#pragma once

#include <cstdint>
#include <string>

#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/training/saved_state.h"
#include "muster/data/loader_options.h"

namespace muster {

SavedState state_of(const DataPosition& position);
// `owner` is the part's name, for messages. Checkpoints from versions that did not count samples
// get the samples of whole epochs. Throws: invalid_argument for a state that lacks a number.
DataPosition data_position_of(const std::string& owner, const SavedState& state);

// The position after `step` steps, as a manifest has it.
TrainingPosition training_position(int64_t step, const DataPosition& position);

}  // namespace muster
