// The trainings of this process that save into one folder. One that did not restore what another
// has saved there would replace and remove it, and a resume would take the other's weights. The
// lock on a folder (saving_lock.h) tells processes apart, and not these. Used only by Checkpoints.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/no_copy.h"

namespace muster {

struct CheckpointsOptions;

class FolderSaver : NoCopy {
 public:
  explicit FolderSaver(const CheckpointsOptions& options);
  ~FolderSaver();

  // Whether the options say that it saves (every, every_time).
  bool says_that_it_saves() const { return says_that_it_saves_; }
  // This training goes on from what is saved until now.
  void note_restored();
  // It begins without a checkpoint, before it trains. Throws: failed_precondition where another one
  // has begun `training` (lineage.h) so and lives; if it says that it saves.
  void note_begun(const std::string& training);
  // Where another one of this process has saved a checkpoint of `training` since, and it is there
  // still: throws failed_precondition if both say that they save, and warns once if not, as of a
  // program that saves its last model by another Checkpoints.
  void check(const std::string& training);
  // This one has saved it.
  void note_saved(const std::string& training, int64_t step) const;

 private:
  std::string folder_;
  bool says_that_it_saves_;
  int64_t number_;
  int64_t restored_at_ = 0;  // by the clock of saves; 0: never
  bool has_warned_ = false;
};

}  // namespace muster
