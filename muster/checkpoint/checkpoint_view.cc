#include "muster/checkpoint/checkpoint_view.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/directory.h"
#include "muster/checkpoint/safetensors_file.h"
#include "muster/checkpoint/shown_text.h"
#include "muster/checkpoint/weight_files.h"

namespace muster {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSuffix = ".safetensors";
constexpr uint64_t kMaxDescriptionBytes = 16 << 20;

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool is_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// Of the plain files in a folder, whatever they are.
uint64_t bytes_in(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      bytes += static_cast<uint64_t>(info.st_size);
  }
  return bytes;
}

uint64_t size_or_none(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

int64_t written_at(const std::string& folder) {
  struct stat info {};
  const std::string manifest = cat(folder, "/", kManifestFile);
  if (::lstat(manifest.c_str(), &info) != 0 && ::lstat(folder.c_str(), &info) != 0) return 0;
  return info.st_mtim.tv_sec;
}

// What a manifest or a tensor of it says of one optimizer; empty when it does not.
std::string kind_in(const std::string& description) {
  if (nests_too_deep(description)) return "";
  const auto parsed = json::parse(description, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return "";
  const auto kind = parsed.value("kind", json());
  return kind.is_string() ? kind.get<std::string>() : "";
}

std::string text_of_tensor(const SafetensorsFile& file, const TensorEntry& entry) {
  if (entry.dtype != "U8" || entry.end - entry.begin > kMaxDescriptionBytes) return "";
  std::string text(entry.end - entry.begin, '\0');
  file.read(text.data(), text.size(), entry.begin);
  return text;
}

// "net" of "tensors/net/description", as muster::Checkpoints saves several optimizers.
std::string optimizer_part(const std::string& tensor) {
  constexpr std::string_view kBefore = "tensors/", kAfter = "/description";
  if (!tensor.starts_with(kBefore) || !tensor.ends_with(kAfter)) return "";
  if (tensor.size() <= kBefore.size() + kAfter.size()) return "";
  return tensor.substr(kBefore.size(), tensor.size() - kBefore.size() - kAfter.size());
}

// "model.safetensors" of "model-00001-of-00004.safetensors", which a rank has written, and of itself.
std::string set_of_file(const std::string& file) {
  constexpr std::string_view kNumbers = "-00000-of-00000";
  if (!file.ends_with(kSuffix)) return file;
  const size_t stem = file.size() - std::string_view(kSuffix).size();
  if (stem <= kNumbers.size()) return file;
  const std::string_view numbers = std::string_view(file).substr(stem - kNumbers.size(), kNumbers.size());
  for (size_t i = 0; i < kNumbers.size(); ++i) {
    const bool is_digit = numbers[i] >= '0' && numbers[i] <= '9';
    if (kNumbers[i] == '0' ? !is_digit : numbers[i] != kNumbers[i]) return file;
  }
  return file.substr(0, stem - kNumbers.size()) + kSuffix;
}

template <class Work>
std::string problem_of(const Work& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return printable(without_room(error.message()));
  }
}

void verify_file(const std::string& folder, const WrittenFile& file, const OnBytesRead& on_bytes) {
  const std::string path = cat(folder, "/", file.name);
  check_size(folder, file);
  check_content(folder, file, [&](size_t bytes) {
    if (on_bytes) on_bytes(path, bytes);
  });
  if (file.name.ends_with(kSuffix)) SafetensorsFile(path).header();
}

}  // namespace

std::string without_room(const std::string& message) {
  constexpr std::string_view kRoom = "checkpoint: ";
  return message.starts_with(kRoom) ? message.substr(kRoom.size()) : message;
}

std::string checkpoints_folder(const std::string& folder) {
  if (!is_folder(folder)) {
    throw Error(ErrorCode::invalid_argument,
                cat("expected a folder, got '", folder, "'; name a run's folder or its checkpoints/"));
  }
  const std::string inner = cat(folder, "/checkpoints");
  return list_checkpoints(folder).empty() && is_folder(inner) ? inner : folder;
}

std::vector<ListedCheckpoint> list_with_state(const std::string& directory) {
  std::vector<ListedCheckpoint> listed;
  for (const StepFolder& folder : list_checkpoints(directory)) {
    const int64_t step = folder.step;
    const std::string& path = folder.path;
    ListedCheckpoint row{.step = step,
                         .path = path,
                         .written_seconds = written_at(path),
                         .bytes = bytes_in(path),
                         .world_size = 0,
                         .epoch = {},
                         .samples_seen = {},
                         .problem = {}};
    row.problem = problem_of([&] {
      const Manifest manifest = read_manifest(path);
      row.world_size = manifest.world_size;
      const auto& position = manifest.position;
      if (position.epoch > 0 || position.epoch_samples > 0) row.epoch = position.epoch;
      if (position.samples_seen > 0) row.samples_seen = position.samples_seen;
      if (manifest.position.step == step) return;
      throw Error(ErrorCode::invalid_argument,
                  cat("checkpoint: expected step ", step, " in '", path, "', got a manifest of step ",
                      manifest.position.step, "; it was renamed or mixed"));
    });
    listed.push_back(std::move(row));
  }
  return listed;
}

CheckpointView view_checkpoint(const std::string& path) {
  CheckpointView view{.path = path, .has_manifest = is_folder(path), .manifest = {}, .files = {}};
  if (view.has_manifest && !is_file(cat(path, "/", kManifestFile))) {  // from elsewhere, without a manifest
    view.has_manifest = false;
    for (const std::string& file : weight_files(path))
      view.files.push_back(
          {.name = fs::path(file).filename().string(), .path = file, .bytes = size_or_none(file)});
    return view;
  }
  if (view.has_manifest) {
    view.manifest = read_manifest(path);
    for (const auto& file : view.manifest.files)
      view.files.push_back({.name = file.name, .path = cat(path, "/", file.name), .bytes = file.bytes});
    return view;
  }
  const SafetensorsFile file(path);
  const uint64_t bytes = sizeof(uint64_t) + file.head().json.size() + file.head().data_bytes;
  view.files.push_back({.name = fs::path(path).filename().string(), .path = path, .bytes = bytes});
  return view;
}

TensorSource TensorSet::open() const {
  std::vector<std::string> paths;
  for (const ViewedFile& file : files) paths.push_back(file.path);
  return TensorSource(paths);
}

std::vector<TensorSet> tensor_sets(const CheckpointView& view) {
  std::vector<TensorSet> sets;
  for (const ViewedFile& file : view.files) {
    if (view.has_manifest && !file.name.ends_with(kSuffix)) continue;
    const std::string name = set_of_file(file.name);
    auto found = std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return set.name == name; });
    if (found == sets.end()) found = sets.insert(sets.end(), TensorSet{.name = name, .files = {}});
    found->files.push_back(file);
  }
  return sets;
}

TensorSet chosen_set(const CheckpointView& view, const std::string& name) {
  std::vector<std::string> names;
  for (TensorSet& set : tensor_sets(view)) {
    if (set.name == name || set.name == name + kSuffix) return std::move(set);
    names.push_back(set.name);
  }
  throw Error(ErrorCode::invalid_argument,
              cat("expected a file of '", view.path, "' (", join_first(names, ", ", 8), "), got '",
                  shown_text(name), "'; correct it"));
}

TensorSet model_set(const CheckpointView& view) {
  return view.has_manifest ? chosen_set(view, kModelFile) : tensor_sets(view).at(0);
}

std::string optimizer_kinds(const CheckpointView& view) {
  if (!view.manifest.optimizer.empty()) return kind_in(view.manifest.optimizer);
  if (view.manifest.find(kPartsFile) == nullptr) return "";
  const SafetensorsFile parts(cat(view.path, "/", kPartsFile));
  std::vector<std::string> kinds;
  for (const auto& [name, entry] : parts.header().tensors) {
    const std::string part = optimizer_part(name);
    const std::string kind = part.empty() ? "" : kind_in(text_of_tensor(parts, entry));
    if (!kind.empty()) kinds.push_back(cat(part, ": ", kind));
  }
  return join_first(kinds, ", ", 16);
}

std::vector<VerifiedFile> verify_files(const std::string& path, const OnBytesRead& on_bytes) {
  std::vector<VerifiedFile> rows;
  if (!is_folder(path)) {
    VerifiedFile row{.checkpoint = path, .file = {}, .bytes = 0, .has_checksum = false, .problem = {}};
    row.problem = problem_of([&] {
      const SafetensorsFile file(path);
      row.bytes = sizeof(uint64_t) + file.head().json.size() + file.head().data_bytes;
      file.header();
    });
    return {row};
  }
  Manifest manifest;
  const std::string problem = problem_of([&] { manifest = read_manifest_alone(path); });
  rows.push_back({.checkpoint = path,
                  .file = kManifestFile,
                  .bytes = size_or_none(cat(path, "/", kManifestFile)),
                  .has_checksum = true,
                  .problem = problem});
  for (const auto& file : manifest.files) {
    rows.push_back({.checkpoint = path,
                    .file = file.name,
                    .bytes = file.bytes,
                    .has_checksum = true,
                    .problem = problem_of([&] { verify_file(path, file, on_bytes); })});
  }
  return rows;
}

}  // namespace muster
