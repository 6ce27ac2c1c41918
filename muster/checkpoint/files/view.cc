// The commands that look at a checkpoint see sets of tensors: a sharded model is one set in several
// files. Whatever a file says is shown with its control characters replaced and its length bounded.
#include "muster/checkpoint/files/view.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/folders.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/shown_text.h"
#include "muster/checkpoint/files/path_facts.h"
#include "muster/checkpoint/files/safetensors_file.h"
#include "muster/checkpoint/files/weight_files.h"

namespace muster {

namespace {

using nlohmann::json;

constexpr std::string_view kSuffix = ".safetensors";
constexpr uint64_t kMaxDescriptionBytes = 16 << 20;

// Returns the kind in the description of an optimizer, or "" if it does not say one.
std::string kind_in(const std::string& description) {
  return text_or_empty(parsed_json<json>(description), "kind");
}

// Returns the text that a vector of bytes holds, or "" for another tensor, or one too large.
std::string text_of_tensor(const SafetensorsFile& file, const TensorEntry& entry) {
  if (entry.dtype != "U8" || entry.end - entry.begin > kMaxDescriptionBytes)
    return "";
  std::string text(entry.end - entry.begin, '\0');
  file.read(text.data(), text.size(), entry.begin);
  return text;
}

// The parts that have tensors, for a person who asked for another.
std::string parts_with_tensors(const TensorSource& source) {
  Strings parts;
  for (const auto& [name, tensor] : source.tensors()) {
    if (!name.starts_with(kPartTensors))
      continue;
    const auto rest = name.substr(std::string_view(kPartTensors).size());
    const auto part = rest.substr(0, rest.find('/'));
    if (parts.empty() || parts.back() != part)
      parts.push_back(part);
  }
  return join_first(parts, ", ", 16);
}

// Throws: invalid_argument if the part has no tensors.
void keep_part(TensorSource& source, const std::string& part, const std::string& file) {
  const auto parts = parts_with_tensors(source);
  source.keep_under(cat(kPartTensors, part, "/"));
  if (!source.tensors().empty())
    return;
  throw invalid_argument("checkpoint: expected a part with tensors in '",
                         printable(file),
                         "' (",
                         shown_text(parts),
                         "), got '",
                         shown_text(part),
                         "'; name one of them");
}

// Returns "net" for "tensors/net/description", as muster::Checkpoints saves several optimizers.
std::string optimizer_part(const std::string& tensor) {
  constexpr std::string_view kBefore = kPartTensors, kAfter = "/description";
  constexpr size_t kAround = kBefore.size() + kAfter.size();
  const bool has_part =
      tensor.starts_with(kBefore) && tensor.ends_with(kAfter) && tensor.size() > kAround;
  return has_part ? tensor.substr(kBefore.size(), tensor.size() - kAround) : "";
}

// Returns "model.safetensors" for "model-00001-of-00004.safetensors", which a rank has written, and
// any other name as it is.
std::string set_of_file(const std::string& file) {
  constexpr std::string_view kEnding = "-00000-of-00000.safetensors";  // 0: any digit
  if (file.size() <= kEnding.size())
    return file;
  const size_t stem = file.size() - kEnding.size();
  std::string ending = file.substr(stem);
  std::ranges::replace_if(ending, [](char c) { return c >= '1' && c <= '9'; }, '0');
  return ending == kEnding ? cat(file.substr(0, stem), kSuffix) : file;
}

// The files of a folder without a manifest are those of one model, as hubs have them.
void add_plain_files(CheckpointView& view) {
  const std::string& path = view.path;
  if (exists_at(cat(path, "/", kWeightIndexFile)))
    for (const auto& [tensor, file] : read_weight_index(path))
      view.promised.push_back(tensor);
  for (const auto& file : weight_files(path)) {
    const auto name = file_name(file);
    view.files.push_back({.name = name, .path = file, .bytes = size_or_none(file)});
  }
}

// Files that the manifest does not name are no part of the checkpoint.
void add_files_of_manifest(CheckpointView& view) {
  view.has_manifest = true;
  view.manifest = read_manifest(view.path);
  for (const auto& [name, bytes, sha256] : view.manifest.files)
    view.files.push_back({.name = name, .path = cat(view.path, "/", name), .bytes = bytes});
}

// The size is computed from the head: eight bytes of length, the head, the data.
void add_single_file(CheckpointView& view) {
  const SafetensorsFile file(view.path);
  const uint64_t bytes = sizeof(uint64_t) + file.head().json.size() + file.head().data_bytes;
  const auto name = file_name(view.path);
  view.files.push_back({.name = name, .path = view.path, .bytes = bytes});
}

}  // namespace

std::string without_command(const std::string& message) {
  constexpr std::string_view kCommand = "checkpoint: ";
  return message.starts_with(kCommand) ? message.substr(kCommand.size()) : message;
}

std::string problem_of(const Callback& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return printable(without_command(error.message()));
  }
}

CheckpointView view_checkpoint(const std::string& path) {
  CheckpointView view{.path = path};
  if (!is_folder(path))
    add_single_file(view);
  else if (exists_at(cat(path, "/", kManifestFile)))
    add_files_of_manifest(view);
  else
    add_plain_files(view);
  return view;
}

// A hub's index promises tensors; a download that was cut short lacks some.
TensorSource TensorSet::open() const {
  TensorSource source(mapped(files, &ViewedFile::path));
  for (const auto& tensor : promised) {
    if (source.contains(tensor))
      continue;
    throw invalid_argument(
        "checkpoint: expected '",
        shown_text(tensor),
        "', which ",
        kWeightIndexFile,
        " names, in its files, got no such tensor; see `muster checkpoint verify`");
  }
  if (!part.empty())
    keep_part(source, part, files.at(0).path);
  return source;
}

// The order of the manifest stays, so the model comes first.
std::vector<TensorSet> tensor_sets(const CheckpointView& view) {
  if (!view.has_manifest) {
    const std::string name = view.files.size() == 1 ? view.files[0].name : kModelFile;
    return {TensorSet{.name = name, .files = view.files, .promised = view.promised}};
  }
  std::vector<TensorSet> sets;
  for (const ViewedFile& file : view.files) {
    if (!file.name.ends_with(kSuffix))
      continue;
    const auto name = set_of_file(file.name);
    TensorSet* set = element_with(sets, name, &TensorSet::name);
    if (set == nullptr)
      set = &sets.emplace_back(TensorSet{.name = name});
    set->files.push_back(file);
  }
  return sets;
}

TensorSet chosen_set(const CheckpointView& view, const std::string& name) {
  Strings names;
  for (TensorSet& set : tensor_sets(view)) {
    if (set.name == name || set.name == cat(name, kSuffix))
      return std::move(set);
    names.push_back(set.name);
  }
  throw invalid_argument("expected a file of '",
                         view.path,
                         "' (",
                         join_first(names, ", ", 8),
                         "), got '",
                         shown_text(name),
                         "'; correct it");
}

TensorSet model_set(const CheckpointView& view) {
  return view.has_manifest ? chosen_set(view, kModelFile) : tensor_sets(view).at(0);
}

TensorSet part_set(const CheckpointView& view, const std::string& part) {
  if (view.manifest.find(kPartsFile) == nullptr) {
    throw invalid_argument("checkpoint: expected a checkpoint's folder, which has parts, got '",
                           shown_text(view.path),
                           view.has_manifest ? "', which has none" : "'",
                           "; do without the part's name, or name the checkpoint");
  }
  TensorSet set = chosen_set(view, kPartsFile);
  set.part = part;
  return set;
}

// Several optimizers have no file of their own: their descriptions are tensors among the parts.
std::string optimizer_kinds(const CheckpointView& view) {
  if (!view.manifest.optimizer.empty())
    return kind_in(view.manifest.optimizer);
  if (view.manifest.find(kPartsFile) == nullptr)
    return "";
  // A description is bounded and checked like anything from a file.
  const SafetensorsFile parts(cat(view.path, "/", kPartsFile));
  Strings kinds;
  for (const auto& [name, entry] : parts.header().tensors) {
    const auto part = optimizer_part(name);
    const std::string kind = part.empty() ? "" : kind_in(text_of_tensor(parts, entry));
    if (!kind.empty())
      kinds.push_back(cat(part, ": ", kind));
  }
  return join_first(kinds, ", ", 16);
}

}  // namespace muster
