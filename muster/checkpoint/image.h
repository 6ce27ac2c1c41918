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

// Keeps those options.keep_last of the run's own that were saved last and look whole (and what is newer), and
// `saved` in any case. Removes the other ones of the run.
void remove_old(const CheckpointOptions& options, const std::string& saved);

}  // namespace muster
