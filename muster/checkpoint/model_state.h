// A model's parameters and buffers by name, checked before anything is copied into them.
// (torch::load would adopt the file's shapes.)
#pragma once

#include <string>

#include "muster/base/tensors.h"
#include "muster/checkpoint/safetensors.h"

namespace torch::nn {
class Module;
}

namespace muster {

// Returns the entries that a file of these tensors would have.
TensorEntries entries_of(const NamedTensors& tensors);

// Throws: failed_precondition for a parameter whose memory is divided over ranks and not here
// (FullySharded). `owner` names the reader in the message.
void require_memory(const char* owner, const std::string& name, const Tensor& tensor);

// Parameters, then buffers, in registration order, by PyTorch's names; undefined ones are skipped.
// Throws: as require_memory.
NamedTensorList model_tensors(const torch::nn::Module& model);

// Throws: invalid_argument, "load: expected … in 'NAME', as in the model, got …".
[[noreturn]] void refuse_saved(const std::string& name,
                               const std::string& expected,
                               const std::string& got);

// Throws: invalid_argument naming the first tensor (in the model's order) that the checkpoint lacks
// or has with another dtype or shape, or else one that the model lacks. `name` names the checkpoint
// in messages.
void check_model(const torch::nn::Module& model,
                 const TensorEntries& entries,
                 const std::string& name);

}  // namespace muster
