// The process remembers who has saved each step of each folder last, and when. Checkpoints that are
// gone from the disk are in nobody's way.
#include "muster/checkpoint/training/folder_saver.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

struct LastSave {
  int64_t saver = 0;
  int64_t at = 0;
};

using StepsOfFolder = std::map<int64_t, LastSave>;

struct SavesOfProcess {
  std::mutex mutex;
  int64_t savers = 0;
  int64_t clock = 0;
  std::map<std::pair<std::string, std::string>, StepsOfFolder> folders;  // with the training
};

SavesOfProcess& saves() {
  static auto& all = *new SavesOfProcess;  // never destroyed: a program may end in any order
  return all;
}

std::pair<std::string, std::string> key_of(const std::string& folder, const std::string& training) {
  return {std::filesystem::absolute(folder).lexically_normal().string(), training};
}

}  // namespace

FolderSaver::FolderSaver() {
  const std::lock_guard lock(saves().mutex);
  number_ = ++saves().savers;
}

void FolderSaver::note_restored() {
  const std::lock_guard lock(saves().mutex);
  restored_at_ = ++saves().clock;
}

void FolderSaver::check(const std::string& folder, const std::string& training) const {
  const std::lock_guard lock(saves().mutex);
  for (const auto& [step, last] : saves().folders[key_of(folder, training)]) {
    const bool is_known = last.saver == number_ || last.at < restored_at_;
    if (is_known || !std::filesystem::exists(cat(folder, "/step-", step)))
      continue;
    throw Error(ErrorCode::failed_precondition,
                cat("checkpoints: expected a folder for each training, got '",
                    folder,
                    "', where another Checkpoints of this program has saved step ",
                    step,
                    ", which this one did not restore; give each a folder of its own (.folder), or "
                    "add all parts to one Checkpoints"));
  }
}

void FolderSaver::note_saved(const std::string& folder,
                             const std::string& training,
                             int64_t step) const {
  const std::lock_guard lock(saves().mutex);
  saves().folders[key_of(folder, training)][step] = {.saver = number_, .at = ++saves().clock};
}

}  // namespace muster
