// Finds the files with a model's weights, for any path that a person or a hub calls a model. Knows
// nothing of LibTorch.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

constexpr auto kWeightIndexFile = "model.safetensors.index.json";

// For a safetensors file, the file itself; for a checkpoint's folder, the model's files; for a
// folder with an index, as hubs have it, the files in the index; for any other folder, its
// model.safetensors. Throws: io; invalid_argument for anything else, and for an index with names
// that are not plain files.
Strings weight_files(const std::string& path);

// Maps each tensor to its file in the folder, by the folder's index. Throws: io; invalid_argument
// for an index with names that are not plain files.
StringMap read_weight_index(const std::string& folder);

// Whether a folder has a model as hubs have it: an index or a model.safetensors, and no manifest.
bool has_plain_weights(const std::string& folder);

}  // namespace muster
