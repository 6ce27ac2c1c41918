// A kept state as text and bytes, for other ranks: what it consists of, and where in the bytes each tensor
// lies. For kept_state.cc and divided_states.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/train/kept_state.h"

namespace muster {

// All of a state but its tensors' content, and the rank.
std::string head_of(const KeptState& state);

// Makes the room of a tensor of this shape.
using MakeRoom = std::function<at::Tensor(const std::vector<int64_t>& shape, at::ScalarType type)>;

// The state of that head, with room for its tensors. Throws: as nlohmann::json.
KeptState room_by_head(const std::string& head, const MakeRoom& make);

// Those that have elements, in an order that is the same for all states of one head.
std::vector<at::Tensor> packed_tensors(const CheckpointImage& image);

// The bytes that hold a state of that head in one piece. Units: bytes.
int64_t packed_bytes(const std::string& head);

// A state of that head whose tensors are views of `bytes`, of packed_bytes(head).
KeptState views_by_head(const std::string& head, const at::Tensor& bytes);

}  // namespace muster
