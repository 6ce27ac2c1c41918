// The lock is on a file of its own, since a run folder that also has the checkpoints is locked by
// its launcher. What this process holds is listed, so that several trainings in it, and the saves
// of one, share a lock.
#include "muster/checkpoint/files/saving_lock.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/directory.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

struct HeldFolders {
  std::mutex mutex = {};
  std::map<std::string, std::weak_ptr<const FolderLock>> by_path = {};
};

HeldFolders& held_folders() {
  static HeldFolders held;
  return held;
}

// One name for a folder, however it is reached.
std::string name_of(const std::string& directory) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(directory, error);
  return error ? directory : path.string();
}

// A folder that nobody saves into has only checkpoints.
void release(FolderLock* lock) {
  lock->remove_file_if_alone();
  delete lock;
}

}  // namespace

std::shared_ptr<const FolderLock> lock_for_saving(const std::string& directory,
                                                  const SavingJob& job) {
  make_directory(directory);
  HeldFolders& held = held_folders();
  const std::lock_guard lock(held.mutex);
  std::weak_ptr<const FolderLock>& mine = held.by_path[name_of(directory)];
  if (auto there = mine.lock())
    return there;
  const std::shared_ptr<FolderLock> taken(new FolderLock({.folder = directory,
                                                          .file = kSavingLock,
                                                          .start = job.launch,
                                                          .attempt = cat(job.attempt)}),
                                          release);
  taken->share();
  if (!taken->why_not().empty()) {
    log(LogLevel::warn,
        cat("checkpoint: no lock on '",
            directory,
            "' (",
            taken->why_not(),
            "): another job that saves there is not refused"));
  }
  mine = taken;
  return taken;
}

std::string other_saver(const std::string& directory) {
  HeldFolders& held = held_folders();
  const std::lock_guard lock(held.mutex);
  const auto mine = held.by_path.find(name_of(directory));
  if (mine != held.by_path.end() && !mine->second.expired())
    return "";
  return holder_of_folder({.folder = directory, .file = kSavingLock});
}

}  // namespace muster
