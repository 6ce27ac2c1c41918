// What a checkpoint will hold, as values: taken from a training in one moment, and written in that moment or
// later.
#pragma once

#include <optional>
#include <string>

#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/optimizer_state.h"

namespace muster {

struct CheckpointImage {
  NamedTensors model;
  std::optional<OptimizerSnapshot> optimizer;
  NamedTensors parts;
  TrainingPosition position;
  int world_size = 1;
};

// Shares memory with the training. Throws: as save_checkpoint, of tensors and optimizers.
CheckpointImage image_of(const TrainingState& state, const TrainingPosition& position, int world_size);

// Makes `copy` one of `image` in memory of its own on the host, so that what the training does afterwards
// changes nothing in it. Tensors that fit are written into: new memory costs more than the copy.
void copy_image(const CheckpointImage& image, CheckpointImage& copy);

// Writes it whole or not at all, and then removes older ones. Returns the checkpoint's path. Throws: as
// save_checkpoint.
std::string write_image(const CheckpointOptions& options, const CheckpointImage& image);

// Keeps options.keep_last of the run's own checkpoints that look whole, and `saved` in any case. The newest
// of the branch that the training is on are kept first, then those of abandoned branches. Removes the run's
// others.
void remove_old(const CheckpointOptions& options, const std::string& saved);

}  // namespace muster
