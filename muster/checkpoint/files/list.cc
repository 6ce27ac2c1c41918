// A checkpoint that is not whole is listed too, with the reason. Sizes and times are looked up
// without it, since they say more than nothing.
#include "muster/checkpoint/files/list.h"

#include <sys/stat.h>

#include <map>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/folders.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/best.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/files/path_facts.h"
#include "muster/checkpoint/files/view.h"

namespace muster {

namespace {

// Adds up the plain files in a folder, whatever they are.
uint64_t bytes_in(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& path : paths_in(folder)) {
    struct stat info{};
    if (::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode))
      bytes += info.st_size;
  }
  return bytes;
}

// The time of the manifest, which is written last; without one, the folder's; 0: neither is there.
int64_t written_at(const std::string& folder) {
  struct stat info{};
  const auto manifest = cat(folder, "/", kManifestFile);
  if (::lstat(manifest.c_str(), &info) != 0 && ::lstat(folder.c_str(), &info) != 0)
    return 0;
  return info.st_mtim.tv_sec;
}

// Fills in what the manifest says. Throws: as read_manifest; invalid_argument if it is of another
// step than the folder.
void add_manifest(ListedCheckpoint& row, const Manifest& manifest) {
  const TrainingPosition& position = manifest.position;
  row.world_size = manifest.world_size;
  if (manifest.serial > 0)
    row.serial = manifest.serial;
  row.parent = manifest.parent;
  if (position.epoch > 0 || position.epoch_samples > 0)
    row.epoch = position.epoch;
  if (position.samples_seen > 0)
    row.samples_seen = position.samples_seen;
  row.metric = manifest.metric;
  check_step(manifest, row.path);
}

}  // namespace

// A person may name the run's folder or the one inside it.
std::string checkpoints_folder(const std::string& folder) {
  if (!is_folder(folder)) {
    throw invalid_argument("expected a folder, got '",
                           printable(folder),
                           "'; name a run's folder or its checkpoints/");
  }
  const auto inner = cat(folder, "/checkpoints");
  return list_checkpoints(folder).empty() && is_folder(inner) ? inner : folder;
}

std::vector<ListedCheckpoint> list_with_state(const std::string& directory) {
  std::vector<ListedCheckpoint> listed;
  std::map<std::string, BestCheckpoint> best;  // of each training
  for (const SavedFolder& folder : list_by_saving(directory)) {
    ListedCheckpoint row{.step = folder.step,
                         .path = folder.path,
                         .is_abandoned = folder.is_abandoned,
                         .written_seconds = written_at(folder.path),
                         .bytes = bytes_in(folder.path)};
    row.problem = problem_of([&] {
      const Manifest manifest = read_manifest(row.path);
      add_manifest(row, manifest);
      if (!row.is_abandoned)
        best[training_of(manifest)].look_at(row.path, manifest);
    });
    listed.push_back(std::move(row));
  }
  for (ListedCheckpoint& row : listed)
    for (const auto& [training, one] : best)
      row.is_best |= !row.path.empty() && row.path == one.path();
  return listed;
}

}  // namespace muster
