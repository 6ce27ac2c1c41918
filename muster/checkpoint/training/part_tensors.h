// A part's state as tensors of one file, parts.safetensors: "tensors/ema/fc.weight",
// "numbers/ema/updates", "texts/metrics/name 0". Used only by Checkpoints.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/checkpoint/saved_state.h"

namespace muster {

// The names of a part's tensors, but not of its numbers and texts, begin with this.
std::string tensor_prefix(const std::string& part);

void put_part(NamedTensors& into, const std::string& part, const SavedState& state);

// Reads a part, its tensors into the memory of those in `into` where they fit. Collective: as
// `read`.
SavedState read_part(const ReadParts& read, const std::string& part, const NamedTensors& into);

// Whether the part was saved. Collective: as `read`.
bool has_part(const ReadParts& read, const std::string& part);

// The names of the parts in a file.
StringSet parts_in(const TensorEntries& saved);

// Whether the file has this number of a part.
bool has_number(const TensorEntries& saved, const std::string& part, const std::string& number);

// An optimizer as a part, for trainings with several of them.
SavedState state_of_optimizer(const Module& model, Optimizer& optimizer);

// Takes the tensors: the optimizer keeps those that lie as it needs them.
void load_state_of_optimizer(const std::string& name,
                             const Module& model,
                             Optimizer& optimizer,
                             SavedState state);

}  // namespace muster
