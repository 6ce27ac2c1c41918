// All that Checkpoints saves of a training: its models and optimizers, and its parts by name. It
// knows what fits together, and not where states go (stores.h) nor when (checkpoints.h). Used only
// by Checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/sharded_checkpoint.h"
#include "muster/checkpoint/training/checkpoints_options.h"
#include "muster/checkpoint/training/folder_saver.h"
#include "muster/checkpoint/training/part.h"
#include "muster/checkpoint/training/trained_models.h"
#include "muster/comm/process_group.h"

namespace muster {

// `may_begin_anew`, of many calls: the state is another run's, so that CheckpointsOptions::fresh
// counts.
class Training : NoCopy {
 public:
  // Throws: invalid_argument for options that make no sense.
  Training(ProcessGroup group, CheckpointsOptions options);

  ProcessGroup& group() { return group_; }
  const CheckpointsOptions& options() const { return options_; }
  TrainedModels& models() { return models_; }
  FolderSaver& saver() { return saver_; }

  // Throws: invalid_argument for a name that is taken or no name.
  void check_name(const std::string& name) const;
  // Throws: as check_name.
  void add(std::unique_ptr<TrainingPart> part);

  // The state of models and optimizer, without parts. Throws: as TrainedModels; the first also
  // failed_precondition for parts that are sharded though the model is not.
  TrainingState whole_state();
  ShardedState sharded_state(bool may_begin_anew = false);
  // The parts, but for those tensors that sharded_state() has as pieces. Collective: yes.
  NamedTensors saved_parts();
  // The position after `step` steps, as the manifest has it.
  TrainingPosition position_after(int64_t step);
  // Whether the first loader has handed out some batches of a step, and not the last.
  bool is_within_step() const;

  // Throws: invalid_argument for options that name parts which are not as they say.
  void check_named_parts() const;
  // Throws: invalid_argument if the saved parts are others than those that were added.
  void check_parts(const TensorEntries& saved, bool may_begin_anew) const;
  // Loads one part after the other, so that no more than one is in memory twice; those of
  // `of_training` first several optimizers. Collective: yes.
  void load_parts(const ReadParts& read, PartPlace place, bool may_begin_anew);
  // Tells every part how the training begins; to those in `fresh` it is new if `has_begun_anew`.
  void begin_parts(Beginning beginning, bool has_begun_anew);

  // The rates that decide: a schedule's stand for those of its optimizer.
  std::vector<LearningRates> learning_rates();
  // Sets the optimizers' rates by their schedules, also where a schedule keeps its own state.
  void apply_schedules();

 private:
  bool is_part(const std::string& name) const;
  bool is_fresh(const std::string& name) const;
  bool keeps_its_state(const TrainingPart& part, const ReadParts& read, bool may_begin_anew) const;
  void check_needed_numbers(const TensorEntries& saved, bool may_begin_anew) const;
  void check_parts_are_whole() const;
  std::vector<ShardedState::Part> parts_in_pieces(const TensorPieces& model,
                                                  bool may_begin_anew) const;
  std::vector<LearningRates> schedules();

  ProcessGroup group_;
  CheckpointsOptions options_;
  TrainedModels models_;
  FolderSaver saver_{options_};
  std::vector<std::unique_ptr<TrainingPart>> parts_;
};

}  // namespace muster
