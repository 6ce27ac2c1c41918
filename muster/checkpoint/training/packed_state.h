// A kept state as text and bytes, for other ranks: its description, and the place of each tensor in
// the bytes. For kept_state.cc and divided_states.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/kept_state.h"

namespace muster {

// Everything in a state except the tensors' content and the rank.
std::string head_of(const KeptState& state);

// Allocates a tensor of this shape.
using MakeRoom = std::function<Tensor(const Int64s& shape, ScalarType type)>;

// A state described by `head`, with memory for its tensors. Throws: as nlohmann::json.
KeptState room_by_head(const std::string& head, const MakeRoom& make);

// The non-empty tensors, in an order that is the same for all states with one head.
Tensors packed_tensors(const CheckpointImage& image);

// The size of a state with that head in one piece. Units: bytes.
int64_t packed_bytes(const std::string& head);

// A state with that head whose tensors are views of `bytes`, of size packed_bytes(head).
KeptState views_by_head(const std::string& head, const Tensor& bytes);

}  // namespace muster
