// The contents of a checkpoint as values: taken from a training at one moment, and written then or
// later.
#pragma once

#include <optional>
#include <string>

#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/host_copies.h"
#include "muster/checkpoint/optimizer_state.h"

namespace muster {

struct CheckpointImage {
  NamedTensors model{};
  std::optional<OptimizerSnapshot> optimizer{};
  NamedTensors parts{};
  TrainingPosition position;
  int world_size = 1;
};

// Shares memory with the training. Throws: as save_checkpoint, for tensors and optimizers.
CheckpointImage image_of(const TrainingState& state,
                         const TrainingPosition& position,
                         int world_size);

// Starts to copy `image` into `copy`, in separate memory on the host, so that later training does
// not change it. Reuses tensors that fit. The copy is there after the result's wait().
HostCopies copy_image(const CheckpointImage& image, CheckpointImage& copy);

// Writes the image completely or not at all, then removes older checkpoints. Returns the
// checkpoint's path. Throws: as save_checkpoint.
std::string write_image(const SaveOptions& options, const CheckpointImage& image);

// The manifest of a checkpoint that is saved with these options, without its number and files.
Manifest new_manifest(const SaveOptions& options,
                      const TrainingPosition& position,
                      int world_size,
                      const std::string& optimizer);

// What a checkpoint's manifest says of it.
LoadedCheckpoint loaded_from(const std::string& path, const Manifest& manifest);

// Keeps options.keep_last of the run's own checkpoints that look complete, and always `saved` and
// the best; removes the run's others. Prefers the newest of the current branch, then those of
// abandoned branches.
void remove_old(const SaveOptions& options, const std::string& saved);

}  // namespace muster
