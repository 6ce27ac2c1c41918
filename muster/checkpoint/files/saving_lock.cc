// The lock is on a file of its own, since a run folder that also has the checkpoints is locked by
// its launcher.
#include "muster/checkpoint/files/saving_lock.h"

#include "muster/checkpoint/files/directory.h"

namespace muster {

std::shared_ptr<const FolderLock> lock_for_saving(const std::string& directory,
                                                  const JobLaunch& job) {
  make_directory(directory);
  return lock_for_process(directory, kSavingLock, job, "checkpoint", "saves");
}

std::string other_saver(const std::string& directory) {
  return other_process_with(directory, kSavingLock);
}

}  // namespace muster
