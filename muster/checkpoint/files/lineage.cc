// Every save of a folder has the next serial number, so the numbers tell the order of saving
// whatever the steps are. A checkpoint whose manifest cannot be read stands where its step would.
#include "muster/checkpoint/files/lineage.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

struct Saved {
  SavedFolder folder;
  int64_t serial = 0;
  std::optional<Manifest> manifest{};  // nothing: it cannot be read
};

// Returns the folder's checkpoints by serial numbers, the smallest first.
std::vector<Saved> all_saved(const std::string& directory) {
  std::vector<Saved> all = mapped(list_checkpoints(directory), [&](const StepFolder& folder) {
    return Saved{.folder = {.step = folder.step, .path = folder.path},
                 .manifest = manifest_if_readable(folder.path)};
  });
  std::ranges::reverse(all);
  // They are in the order of their steps now, so an unreadable one takes the number before.
  int64_t before = 0;
  for (Saved& one : all)
    before = one.serial = one.manifest ? one.manifest->serial : before;
  std::ranges::stable_sort(all, {}, &Saved::serial);
  return all;
}

}  // namespace

// The newest checkpoint knows its ancestors, so it says which of the others its training has
// abandoned.
SavedFolders list_by_saving(const std::string& directory, const IsOwn& is_own) {
  auto all = all_saved(directory);
  std::ranges::reverse(all);
  const auto newest = std::ranges::find_if(
      all, [&](const Saved& one) { return one.manifest && (!is_own || is_own(*one.manifest)); });
  SavedFolders folders;
  for (Saved& one : all) {
    one.folder.is_abandoned = newest != all.end() && is_in(newest->manifest->abandoned, one.serial);
    folders.push_back(one.folder);
  }
  std::ranges::stable_partition(folders, std::logical_not(), &SavedFolder::is_abandoned);
  return folders;
}

SavedFolders list_by_saving(const std::string& directory,
                            const std::string& only,
                            const IsOwn& is_own) {
  SavedFolders folders = list_by_saving(directory, is_own);
  if (only.empty())
    return folders;
  Strings names;
  for (SavedFolder& folder : folders) {
    names.push_back(file_name(folder.path));
    if (names.back() != only)
      continue;
    folder.is_abandoned = false;  // it is asked for
    return {std::move(folder)};
  }
  throw invalid_argument("checkpoint: expected one of ",
                         names.empty() ? "none" : join(names, ", "),
                         " in '",
                         directory,
                         "', got '",
                         only,
                         "'; see `muster checkpoint ls`");
}

bool is_accepted(const std::string& path, const IsOwn& accept) {
  if (!accept)
    return true;
  try {
    return accept(read_manifest_alone(path));
  } catch (const Error& error) {
    log_warning("checkpoint: '", path, "' is skipped: ", error.message());
    return false;
  }
}

void SkippedCheckpoints::add(const std::string& path, const Error& error, bool warns) {
  if (warns)
    log_warning("checkpoint: '", path, "' is skipped: ", error.message());
  problems_ += cat("\n  ", path, ": ", error.message());
}

void SkippedCheckpoints::refuse_if_any(const std::string& directory) const {
  if (problems_.empty())
    return;
  throw Error(ErrorCode::io,
              "checkpoint: expected a whole one in '",
              directory,
              "', got only damaged ones; remove them to start anew:",
              problems_);
}

void warn_of_abandoned(const std::string& path) {
  log_warning(
      "checkpoint: '",
      path,
      "' is of a branch that the training had abandoned; it is loaded because no checkpoint of the "
      "later branch is whole");
}

// A number of an abandoned branch must not come again, even if its checkpoint is gone.
int64_t next_serial(const std::string& directory, const SerialRanges& abandoned) {
  const auto all = all_saved(directory);
  int64_t largest = all.empty() ? 0 : all.back().serial;
  for (const SerialRange& range : abandoned)
    largest = std::max(largest, range.until);
  return largest + 1;
}

SerialRanges abandoned_after(const SerialRanges& abandoned, int64_t serial, int64_t last) {
  SerialRanges ranges = abandoned;
  // The new range contains those that begin after it.
  std::erase_if(ranges, [&](const SerialRange& range) { return range.after >= serial; });
  if (last > serial)
    ranges.push_back({.after = serial, .until = last});
  return ranges;
}

}  // namespace muster
