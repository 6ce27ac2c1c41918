#include "muster/checkpoint/lineage.h"

#include <algorithm>
#include <optional>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/manifest.h"

namespace muster {

namespace {

struct SavedFolder {
  StepFolder folder;
  int64_t serial = 0;
};

std::optional<int64_t> serial_of(const std::string& path) {
  try {
    return read_manifest_alone(path).serial;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// By steps, the smallest first.
std::vector<SavedFolder> with_serials(const std::string& directory) {
  std::vector<SavedFolder> saved;
  for (StepFolder& folder : list_checkpoints(directory)) saved.push_back({.folder = std::move(folder)});
  std::reverse(saved.begin(), saved.end());
  int64_t before = 0;
  for (SavedFolder& one : saved) before = one.serial = serial_of(one.folder.path).value_or(before);
  return saved;
}

}  // namespace

std::vector<StepFolder> list_by_saving(const std::string& directory) {
  std::vector<SavedFolder> saved = with_serials(directory);
  std::stable_sort(saved.begin(), saved.end(),
                   [](const SavedFolder& a, const SavedFolder& b) { return a.serial < b.serial; });
  std::vector<StepFolder> folders;
  for (auto one = saved.rbegin(); one != saved.rend(); ++one) folders.push_back(std::move(one->folder));
  return folders;
}

std::vector<StepFolder> list_by_saving(const std::string& directory, const std::string& only) {
  std::vector<StepFolder> folders = list_by_saving(directory);
  if (only.empty()) return folders;
  std::vector<std::string> names;
  for (StepFolder& folder : folders) {
    names.push_back(folder.path.substr(folder.path.rfind('/') + 1));
    if (names.back() == only) return {std::move(folder)};
  }
  throw Error(ErrorCode::invalid_argument,
              cat("checkpoint: expected one of ", names.empty() ? "none" : join(names, ", "), " in '",
                  directory, "', got '", only, "'; see `muster checkpoint ls`"));
}

int64_t next_serial(const std::string& directory) {
  int64_t largest = 0;
  for (const SavedFolder& one : with_serials(directory)) largest = std::max(largest, one.serial);
  return largest + 1;
}

}  // namespace muster
