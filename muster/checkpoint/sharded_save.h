// Writes checkpoints to which every rank contributes a part, in this thread or in its own, one at a
// time. The ranks' threads meet in the folder: each leaves a record of what it wrote there, and
// rank 0's thread publishes the checkpoint when all records are there. Called by Checkpoints.
#pragma once

#include <memory>
#include <string>

#include "muster/base/no_copy.h"
#include "muster/checkpoint/image.h"
#include "muster/checkpoint/sharded_checkpoint.h"

namespace muster {

class ShardedSave : NoCopy {
 public:
  ShardedSave();
  // Waits for the background write, but during stack unwinding not for other ranks. Logs failures.
  ~ShardedSave();

  // Starts to write `state`. With `background` it returns once the rank's part is copied; otherwise
  // the part is written from the training's own memory, and finish() must follow at once. Returns
  // the path that the checkpoint will have. Collective: yes. Throws: as finish(),
  // plan_sharded_save; unavailable if there is no space; failed_precondition for a rank that does
  // not see rank 0's folder.
  std::string start(const SaveOptions& options,
                    const ShardedState& state,
                    const TrainingPosition& position,
                    ProcessGroup& group,
                    bool background);

  // Blocking: until the checkpoint is complete.
  // Collective: yes.
  // Throws: on every rank, what the writing threw; then there is no such checkpoint.
  void finish(ProcessGroup& group);

 private:
  void write_in_background();
  void write_part();
  bool gather_records();
  void publish();
  void end_thread();

  struct Save;
  std::unique_ptr<Save> save_;  // the one in progress
  TensorPieces copy_;           // of a background save; its memory is reused
};

}  // namespace muster
