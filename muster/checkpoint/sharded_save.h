// Writes checkpoints that every rank writes a part of, in this thread or in one of its own, one at a time.
// The ranks' threads meet in the folder that they write into: each leaves a record there of what it wrote,
// and rank 0's publishes the whole when all records are there. Called by Checkpoints.
#pragma once

#include <memory>
#include <string>

#include "muster/checkpoint/image.h"
#include "muster/checkpoint/sharded_checkpoint.h"

namespace muster {

class ShardedSave {
 public:
  ShardedSave();
  ShardedSave(const ShardedSave&) = delete;
  ShardedSave& operator=(const ShardedSave&) = delete;
  // Waits for what is being written in the background, but for no rank while an exception goes through; what
  // fails is logged.
  ~ShardedSave();

  // Begins to write `state`. With `background`, this returns when the rank's part is copied; else the part is
  // written from the training's own memory, and finish() must follow at once. Returns the path that the
  // checkpoint will have. Collective: yes. Throws: as finish(), plan_sharded_save; unavailable without space;
  // failed_precondition for a rank that does not see rank 0's folder.
  std::string start(const CheckpointOptions& options, const ShardedState& state,
                    const TrainingPosition& position, ProcessGroup& group, bool background);

  // Blocking: until the checkpoint is whole. Collective: yes. Throws: what the writing threw, on every rank;
  // then there is no such checkpoint.
  void finish(ProcessGroup& group);

 private:
  void write_part();
  void publish();
  void end_thread();

  struct Job;
  std::unique_ptr<Job> job_;  // what is being written
  TensorPieces copy_;         // of a background save; its memory is used again
};

}  // namespace muster
