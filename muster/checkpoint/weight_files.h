// Which files hold a model's weights, for whatever a person or a hub calls a model. Knows no LibTorch.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace muster {

constexpr const char* kWeightIndexFile = "model.safetensors.index.json";

// A safetensors file itself; of a checkpoint's folder the model's files; of a folder with an index, as hubs
// have it, those that the index names; of another folder its model.safetensors. Throws: io; invalid_argument
// for anything else, and an index that names no plain files.
std::vector<std::string> weight_files(const std::string& path);

// In which file beside it each tensor lies, as the folder's index says. Throws: io; invalid_argument for an
// index that names no plain files.
std::map<std::string, std::string> read_weight_index(const std::string& folder);

// Whether a folder holds a model as hubs have it: an index or a model.safetensors, and no manifest.
bool has_plain_weights(const std::string& folder);

}  // namespace muster
