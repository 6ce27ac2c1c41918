// The stores of a training's states, on the disk and in memory. One store is for a training that
// every rank has whole, the other for one that is sharded over the ranks. Used only by Checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/no_copy.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/background_save.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/sharded_save.h"
#include "muster/checkpoint/training/kept_state.h"
#include "muster/checkpoint/training/training.h"

namespace muster {

// A state in memory that a store has found, and restored models and optimizers from.
struct RestoredState {
  KeptState state;
  std::string name;  // for the log: "step 7 in memory"
};

// All calls are collective.
class TrainingStore : NoCopy {
 public:
  explicit TrainingStore(Training& training) : training_(training) {}
  virtual ~TrainingStore() = default;

  // Saves the state after `step` steps, in a thread if the training's options say so. Returns the
  // path that the checkpoint has or will have. Throws: as save_checkpoint, and what writing the
  // checkpoint before threw.
  virtual std::string save(const SaveOptions& options, int64_t step) = 0;
  // Blocking: until everything is written. Throws: what the writing threw.
  virtual void finish() = 0;
  // Restores models and optimizers from the newest checkpoint that `load` accepts. The parts are
  // the caller's to load. Throws: as load_latest_checkpoint.
  virtual std::optional<LoadedCheckpoint> load(const LoadOptions& load, bool may_begin_anew) = 0;

  // Keeps the state after `step` steps in memory.
  virtual void keep(int64_t step, const TrainingBranch& branch) = 0;
  // Restores models and optimizers from the newest state in memory, if there is one to go on from.
  // The parts are the caller's to load. Throws: invalid_argument for a state that does not fit.
  virtual std::optional<RestoredState> restore_kept() = 0;

 protected:
  Training& training() { return training_; }
  ProcessGroup& group() { return training_.group(); }
  const CheckpointsOptions& options() const { return training_.options(); }

 private:
  Training& training_;
};

// Rank 0 writes, and every rank keeps all of the state in memory.
class WholeStore : public TrainingStore {
 public:
  using TrainingStore::TrainingStore;
  std::string save(const SaveOptions& options, int64_t step) override;
  void finish() override;
  std::optional<LoadedCheckpoint> load(const LoadOptions& load, bool may_begin_anew) override;
  void keep(int64_t step, const TrainingBranch& branch) override;
  std::optional<RestoredState> restore_kept() override;

 private:
  bool finds_sharded(const LoadOptions& load);
  void warn_of_own_values(const Module& model);
  void check_kept(const TrainingState& mine, const CheckpointImage& image, const std::string& name);

  BackgroundSave writer_;
  bool has_warned_of_own_values_ = false;
};

// Every rank writes its part, and keeps it and a neighbour's in memory.
class ShardedStore : public TrainingStore {
 public:
  using TrainingStore::TrainingStore;
  std::string save(const SaveOptions& options, int64_t step) override;
  void finish() override;
  std::optional<LoadedCheckpoint> load(const LoadOptions& load, bool may_begin_anew) override;
  void keep(int64_t step, const TrainingBranch& branch) override;
  std::optional<RestoredState> restore_kept() override;

 private:
  void say_that_nothing_is_kept();

  ShardedSave writer_;
  bool has_said_that_nothing_is_kept_ = false;
};

}  // namespace muster
