// A model's parameters and buffers by name, checked before anything is copied into them. (torch::load would
// take the file's shapes instead.)
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "muster/checkpoint/safetensors.h"

namespace torch::nn {
class Module;
}

namespace muster {

using TensorEntries = std::map<std::string, TensorEntry>;

// Throws: failed_precondition for a parameter whose memory is divided over ranks and not here (FullySharded).
// `owner` is who would read it, for the message.
void require_memory(const char* owner, const std::string& name, const at::Tensor& tensor);

// Parameters, then buffers, in registration order; undefined ones are left out. The names are PyTorch's.
// Throws: as require_memory.
std::vector<std::pair<std::string, at::Tensor>> model_tensors(const torch::nn::Module& model);

// Throws: invalid_argument naming the first tensor (in the model's order) that the checkpoint lacks or holds
// with another dtype or shape, or else one that the model lacks. `name` is what messages call the checkpoint.
void check_model(const torch::nn::Module& model, const TensorEntries& entries, const std::string& name);

}  // namespace muster
