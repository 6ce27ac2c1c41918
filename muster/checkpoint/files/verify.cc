// A checkpoint's manifest has a checksum for every file. Files of a hub have none, so what can be
// verified is that their heads are right and that the tensors of the index are there.
#include "muster/checkpoint/files/verify.h"

#include <filesystem>
#include <map>

#include "muster/base/error.h"
#include "muster/base/functions.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/files/path_facts.h"
#include "muster/checkpoint/files/safetensors_file.h"
#include "muster/checkpoint/files/view.h"
#include "muster/checkpoint/files/weight_files.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

// Throws: io or invalid_argument for a file that is not as the manifest says.
void verify_file(const std::string& folder, const WrittenFile& file, const OnBytesRead& on_bytes) {
  const auto path = cat(folder, "/", file.name);
  check_size(folder, file);
  check_content(folder, file, [&](size_t bytes) {
    if (on_bytes)
      on_bytes(path, bytes);
  });
  if (file.name.ends_with(".safetensors"))
    SafetensorsFile(path).header();
}

// A file of the folder, and what `work` finds wrong with it.
VerifiedFile verified(const std::string& folder, const std::string& name, const Callback& work) {
  return {.checkpoint = folder,
          .file = name,
          .bytes = size_or_none(cat(folder, "/", name)),
          .problem = problem_of(work)};
}

// Verifies a checkpoint: its manifest, and each file that the manifest names.
VerifiedFiles verify_manifest(const std::string& path, const OnBytesRead& on_bytes) {
  Manifest manifest;
  VerifiedFiles rows = {
      verified(path, kManifestFile, [&] { manifest = read_manifest_alone(path); })};
  rows[0].has_checksum = true;
  for (const auto& file : manifest.files) {
    rows.push_back({.checkpoint = path,
                    .file = file.name,
                    .bytes = file.bytes,
                    .has_checksum = true,
                    .problem = problem_of([&] { verify_file(path, file, on_bytes); })});
  }
  return rows;
}

// Checks that the head keeps its own rules, and that the tensors that an index promises are there.
void verify_head(const std::string& path, const StringSet& promised) {
  const SafetensorsHeader header = SafetensorsFile(path).header();
  for (const auto& tensor : promised) {
    if (header.tensors.contains(tensor))
      continue;
    throw invalid_argument("checkpoint: expected '",
                           shown_text(tensor),
                           "' in '",
                           path,
                           "', as ",
                           kWeightIndexFile,
                           " says, got no such tensor; fetch the files again");
  }
}

// A hub's file has no checksum; its head says how long it must be.
VerifiedFile verified_by_head(const std::string& folder,
                              const std::string& name,
                              const StringSet& promised) {
  return verified(folder, name, [&] { verify_head(cat(folder, "/", name), promised); });
}

// Verifies a hub's folder: its index, and each file that the index names.
VerifiedFiles verify_index(const std::string& folder) {
  std::map<std::string, StringSet> promised;  // by file
  VerifiedFiles rows = {verified(folder, kWeightIndexFile, [&] {
    for (const auto& [tensor, file] : read_weight_index(folder))
      promised[file].insert(tensor);
  })};
  for (const auto& [file, tensors] : promised)
    rows.push_back(verified_by_head(folder, file, tensors));
  return rows;
}

// Whether a folder is a hub's. One with a checkpoint's name that lacks its manifest is not: it is a
// damaged checkpoint.
bool is_from_elsewhere(const std::string& folder) {
  return has_plain_weights(folder) &&
         !is_checkpoint_name(fs::absolute(folder).lexically_normal().string());
}

}  // namespace

// A path may be a file alone, a checkpoint, or a folder of a hub.
VerifiedFiles verify_files(const std::string& path, const OnBytesRead& on_bytes) {
  if (!is_folder(path)) {
    return {{.checkpoint = path, .bytes = size_or_none(path), .problem = problem_of([&] {
                                                                verify_head(path, {});
                                                              })}};
  }
  if (!is_from_elsewhere(path))
    return verify_manifest(path, on_bytes);
  if (fs::exists(cat(path, "/", kWeightIndexFile)))
    return verify_index(path);
  return {verified_by_head(path, kModelFile, {})};
}

}  // namespace muster
