// The trainings of this process that save into one folder. One that did not restore what another
// has saved there would replace and remove it, and a resume would take the other's weights. The
// lock on a folder (saving_lock.h) tells processes apart, and not these. Used only by Checkpoints.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

class FolderSaver {
 public:
  FolderSaver();

  // This training goes on from what is saved until now.
  void note_restored();
  // Throws: failed_precondition where another one of this process has saved a checkpoint of
  // `training` (lineage.h) there since, and it is there still.
  void check(const std::string& folder, const std::string& training) const;
  // This one has saved it.
  void note_saved(const std::string& folder, const std::string& training, int64_t step) const;

 private:
  int64_t number_;
  int64_t restored_at_ = 0;  // by the clock of saves; 0: never
};

}  // namespace muster
