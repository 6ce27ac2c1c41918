// The process remembers what each Checkpoints has saved last in each folder, and when. Checkpoints
// that are gone from the disk are in nobody's way, and are forgotten with who has saved them.
#include "muster/checkpoint/training/folder_saver.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/training/checkpoints_options.h"

namespace muster {

namespace {

struct LastSave {
  int64_t step = 0;
  int64_t at = 0;
  bool says_that_it_saves = false;
};

using Place = std::pair<std::string, std::string>;  // a folder and a training

struct SavesOfProcess {
  std::mutex mutex;
  int64_t savers = 0;
  int64_t clock = 0;
  std::map<Place, int64_t> begun;                         // who has, and lives
  std::map<Place, std::map<int64_t, LastSave>> by_saver;  // its last save
};

SavesOfProcess& saves() {
  static auto& all = *new SavesOfProcess;  // never destroyed: a program may end in any order
  return all;
}

Place place_of(const std::string& folder, const std::string& training) {
  return {std::filesystem::absolute(folder).lexically_normal().string(), training};
}

bool is_on_disk(const std::string& folder, int64_t step) {
  std::error_code failed;  // what cannot be asked is not there
  return std::filesystem::exists(cat(folder, "/step-", step), failed);
}

std::string expected_own_folder(const std::string& folder, const std::string& other) {
  return cat("checkpoints: expected a folder for each training, got '",
             folder,
             "', where another Checkpoints of this program ",
             other,
             "; give each a folder of its own (.folder), or add all parts to one Checkpoints");
}

}  // namespace

FolderSaver::FolderSaver(const CheckpointsOptions& options)
    : folder_(options.folder),
      says_that_it_saves_(options.every > 0 || options.every_time.count() > 0) {
  const Lock lock(saves().mutex);
  number_ = ++saves().savers;
}

FolderSaver::~FolderSaver() {
  const Lock lock(saves().mutex);
  std::erase_if(saves().begun, [&](const auto& item) { return item.second == number_; });
  for (auto& [place, by_saver] : saves().by_saver)
    std::erase_if(by_saver, [&](const auto& item) {
      return item.first == number_ && !is_on_disk(folder_, item.second.step);
    });
  std::erase_if(saves().by_saver, [](const auto& item) { return item.second.empty(); });
}

void FolderSaver::note_restored() {
  const Lock lock(saves().mutex);
  restored_at_ = ++saves().clock;
}

void FolderSaver::note_begun(const std::string& training) {
  const Lock lock(saves().mutex);
  if (says_that_it_saves_ &&
      saves().begun.try_emplace(place_of(folder_, training), number_).first->second != number_)
    throw failed_precondition(
        expected_own_folder(folder_, "has begun to train, and is to save, too"));
}

void FolderSaver::check(const std::string& training) {
  const Lock lock(saves().mutex);
  for (const auto& [saver, last] : saves().by_saver[place_of(folder_, training)]) {
    const bool is_known = saver == number_ || last.at < restored_at_;
    if (is_known || !is_on_disk(folder_, last.step))
      continue;
    const auto has_saved = cat("has saved step ", last.step, ", which this one did not restore");
    if (says_that_it_saves_ && last.says_that_it_saves)
      throw failed_precondition(expected_own_folder(folder_, has_saved));
    if (!std::exchange(has_warned_, true))
      log_warning(
          expected_own_folder(folder_,
                              cat(has_saved,
                                  ": steps of both are counted by .keep_last, and a resume takes "
                                  "the newest, of either")));
  }
}

void FolderSaver::note_saved(const std::string& training, int64_t step) const {
  const Lock lock(saves().mutex);
  saves().by_saver[place_of(folder_, training)][number_] = {
      .step = step, .at = ++saves().clock, .says_that_it_saves = says_that_it_saves_};
}

}  // namespace muster
