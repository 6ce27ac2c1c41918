// The names of files in an index come from somebody else: only plain names are taken, so that no
// file outside of the folder is read.
#include "muster/checkpoint/files/weight_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/mapped.h"
#include "muster/base/shown_text.h"
#include "muster/checkpoint/files/path_facts.h"
#include "muster/checkpoint/files/view.h"

namespace muster {

namespace {

using nlohmann::json;

constexpr auto kPickleFile = "pytorch_model.bin";
constexpr auto kPickleIndexFile = "pytorch_model.bin.index.json";

// The files can still be loaded one by one.
[[noreturn]] void refuse_index(const std::string& path, const std::string& got) {
  throw invalid_argument("checkpoint: expected 'weight_map' with names of files beside it in '",
                         printable(path),
                         "', got ",
                         shown_text(got),
                         "; load the safetensors files one by one");
}

// Returns the files of an index, each once.
Strings indexed_files(const std::string& folder) {
  StringSet names;
  for (const auto& [tensor, file] : read_weight_index(folder))
    names.insert(file);
  return mapped(names, [&](const auto& name) { return cat(folder, "/", name); });
}

// Tells a person who gave a folder without safetensors files what to do.
[[noreturn]] void refuse_folder(const std::string& path) {
  const bool has_pickle =
      exists_at(cat(path, "/", kPickleFile)) || exists_at(cat(path, "/", kPickleIndexFile));
  std::string got = "none of them; name the safetensors file itself";
  if (exists_at(path + "/checkpoints"))
    got = "a run's folder; name one of its checkpoints, as `muster checkpoint ls` lists them";
  if (has_pickle)
    got = cat(kPickleFile,
              ", which torch.save has written; convert it: "
              "safetensors.torch.save_file(torch.load(path), …) in Python");
  throw invalid_argument("checkpoint: expected a checkpoint, ",
                         kWeightIndexFile,
                         " or ",
                         kModelFile,
                         " in '",
                         printable(path),
                         "', got ",
                         got);
}

}  // namespace

// Every name is checked, since the files are opened by it.
StringMap read_weight_index(const std::string& folder) {
  const std::string path = cat(folder, "/", kWeightIndexFile), text = read_small_plain_file(path);
  const json map = member_or_null(parsed_json<json>(text), "weight_map");
  if (!map.is_object() || map.empty())
    refuse_index(path, "something else");
  StringMap files;
  for (const auto& item : map.items()) {
    const std::string name = item.value().is_string() ? item.value().get<std::string>() : "";
    if (name.empty() || contains(name, '/') || name[0] == '.')
      refuse_index(path, item.value().dump());
    files.emplace(item.key(), name);
  }
  return files;
}

bool has_plain_weights(const std::string& folder) {
  if (exists_at(cat(folder, "/", kManifestFile)))
    return false;
  return exists_at(cat(folder, "/", kWeightIndexFile)) || exists_at(cat(folder, "/", kModelFile));
}

Strings weight_files(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0)
    fail_errno(errno, "checkpoint: cannot find '", path, "'");
  if (!S_ISDIR(info.st_mode))
    return {path};
  // A manifest comes first, then an index, then a file with the usual name.
  if (exists_at(cat(path, "/", kManifestFile))) {
    return mapped(model_set(view_checkpoint(path)).files, &ViewedFile::path);
  }
  if (exists_at(cat(path, "/", kWeightIndexFile)))
    return indexed_files(path);
  if (exists_at(cat(path, "/", kModelFile)))
    return {cat(path, "/", kModelFile)};
  refuse_folder(path);
}

}  // namespace muster
