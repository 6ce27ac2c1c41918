// What this process holds is listed by the lock file's path, however the folder is reached.
#include "muster/base/process_lock.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>

#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

struct HeldLocks {
  std::mutex mutex{};
  std::map<std::string, std::weak_ptr<const FolderLock>> by_path{};
};

HeldLocks& held_locks() {
  static HeldLocks held;
  return held;
}

// One name for a lock file.
std::string name_of(const std::string& folder, const std::string& file) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(folder, error);
  return cat(error ? folder : path.string(), "/", file);
}

// A folder that nobody writes into has no lock file.
void release(FolderLock* lock) {
  lock->remove_file_if_alone();
  delete lock;
}

}  // namespace

std::shared_ptr<const FolderLock> lock_for_process(const std::string& folder,
                                                   const std::string& file,
                                                   const JobLaunch& job,
                                                   const std::string& subject,
                                                   const std::string& does) {
  HeldLocks& held = held_locks();
  const Lock lock(held.mutex);
  std::weak_ptr<const FolderLock>& mine = held.by_path[name_of(folder, file)];
  if (auto there = mine.lock(); there && there->is_of_this_process())
    return there;
  const std::shared_ptr<FolderLock> taken(
      new FolderLock(
          {.folder = folder, .file = file, .start = job.launch, .attempt = cat(job.attempt)}),
      release);
  taken->share();
  if (!taken->why_not().empty()) {
    log_warning(subject,
                ": no lock on '",
                printable(folder),
                "' (",
                taken->why_not(),
                "): another job that ",
                does,
                " there is not refused");
  }
  mine = taken;
  return taken;
}

std::string other_process_with(const std::string& folder, const std::string& file) {
  HeldLocks& held = held_locks();
  const Lock lock(held.mutex);
  const auto mine = find_or(held.by_path, name_of(folder, file)).lock();
  if (mine && mine->is_of_this_process())
    return "";
  return holder_of_folder({.folder = folder, .file = file});
}

}  // namespace muster
