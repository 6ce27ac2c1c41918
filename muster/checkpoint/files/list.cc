#include "muster/checkpoint/files/list.h"

#include <sys/stat.h>

#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/files/path_facts.h"
#include "muster/checkpoint/files/view.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

// Of the plain files in a folder, whatever they are.
uint64_t bytes_in(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    struct stat info{};
    if (::lstat(it->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      bytes += static_cast<uint64_t>(info.st_size);
  }
  return bytes;
}

int64_t written_at(const std::string& folder) {
  struct stat info{};
  const std::string manifest = cat(folder, "/", kManifestFile);
  if (::lstat(manifest.c_str(), &info) != 0 && ::lstat(folder.c_str(), &info) != 0)
    return 0;
  return info.st_mtim.tv_sec;
}

}  // namespace

std::string checkpoints_folder(const std::string& folder) {
  if (!is_folder(folder)) {
    throw Error(
        ErrorCode::invalid_argument,
        cat("expected a folder, got '", folder, "'; name a run's folder or its checkpoints/"));
  }
  const std::string inner = cat(folder, "/checkpoints");
  return list_checkpoints(folder).empty() && is_folder(inner) ? inner : folder;
}

std::vector<ListedCheckpoint> list_with_state(const std::string& directory) {
  std::vector<ListedCheckpoint> listed;
  for (const SavedFolder& folder : list_by_saving(directory)) {
    const int64_t step = folder.step;
    const std::string& path = folder.path;
    ListedCheckpoint row{.step = step,
                         .path = path,
                         .is_abandoned = folder.is_abandoned,
                         .written_seconds = written_at(path),
                         .bytes = bytes_in(path),
                         .world_size = 0,
                         .epoch = {},
                         .samples_seen = {},
                         .problem = {}};
    row.problem = problem_of([&] {
      const Manifest manifest = read_manifest(path);
      row.world_size = manifest.world_size;
      if (manifest.serial > 0)
        row.serial = manifest.serial;
      row.parent = manifest.parent;
      const auto& position = manifest.position;
      if (position.epoch > 0 || position.epoch_samples > 0)
        row.epoch = position.epoch;
      if (position.samples_seen > 0)
        row.samples_seen = position.samples_seen;
      if (manifest.position.step == step)
        return;
      throw Error(ErrorCode::invalid_argument,
                  cat("checkpoint: expected step ",
                      step,
                      " in '",
                      path,
                      "', got a manifest of step ",
                      manifest.position.step,
                      "; its folder was renamed, or has files of another checkpoint"));
    });
    listed.push_back(std::move(row));
  }
  return listed;
}

}  // namespace muster
