// Which files hold a model's weights, for whatever a person or a hub calls a model. Knows no LibTorch.
#pragma once

#include <string>
#include <vector>

namespace muster {

constexpr const char* kWeightIndexFile = "model.safetensors.index.json";

// A safetensors file itself; of a checkpoint's folder the model's files; of a folder with an index, as hubs
// have it, those that the index names; of another folder its model.safetensors. Throws: io; invalid_argument
// for anything else, and an index that names no plain files.
std::vector<std::string> weight_files(const std::string& path);

}  // namespace muster
