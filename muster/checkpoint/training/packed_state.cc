// A head is JSON: the numbers of a state, and for each set of tensors a safetensors head. Whoever
// reads it makes room for the tensors, in memory of their own or as views of one block of bytes. In
// a block each tensor begins at a multiple of 64 bytes, so that a view is aligned for any type.
#include "muster/checkpoint/training/packed_state.h"

#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "muster/base/divided_up.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/safetensors_dtype.h"

namespace muster {

namespace {

constexpr auto kFromMemory = "a state in another rank's memory";  // for messages
constexpr int64_t kAlignment = 64;

// Makes room for one set of tensors, in the order of their names.
NamedTensors room_for(const nlohmann::json& tensors, const MakeRoom& make) {
  NamedTensors room;
  const std::string head = tensors["head"];
  const SafetensorsHeader header = parse_safetensors_header(head, tensors["bytes"], kFromMemory);
  for (const auto& [name, entry] : header.tensors)
    room.emplace(name, make(entry.shape, scalar_type_of(entry)));
  return room;
}

int64_t content_bytes(const Int64s& shape, ScalarType type) {
  const auto element = static_cast<int64_t>(at::elementSize(type));
  return std::accumulate(shape.begin(), shape.end(), element, std::multiplies<>());
}

// The bytes that a tensor takes in a block.
int64_t bytes_for(const Int64s& shape, ScalarType type) {
  return rounded_up(content_bytes(shape, type), kAlignment);
}

}  // namespace

// The rank is left out: whoever gets the state has a rank of its own.
std::string head_of(const KeptState& state) {
  // Each set of tensors has a safetensors head, and its size for the parser.
  const auto tensors = [](const NamedTensors& named) {
    const SafetensorsHead head = make_safetensors_head(named);
    return nlohmann::json{{"head", head.json}, {"bytes", head.data_bytes}};
  };
  const CheckpointImage& image = state.image;
  auto abandoned = nlohmann::json::array();
  for (const SerialRange& range : state.branch.abandoned)
    abandoned.push_back({range.after, range.until});
  return nlohmann::json{
      {"step", image.position.step},
      {"goings_back", state.branch.goings_back},
      {"abandoned", std::move(abandoned)},
      {"world_size", image.world_size},
      {"begun_by", state.branch.begun_by},
      {"path", state.branch.path},
      {"model", tensors(image.model)},
      {"parts", tensors(image.parts)},
      {"optimizer",
       image.optimizer ? nlohmann::json(image.optimizer->description) : nlohmann::json()},
      {"moments", tensors(image.optimizer ? image.optimizer->tensors : NamedTensors{})}}
      .dump();
}

// Room is made in the order of packed_tensors, which views of one block rely on.
KeptState room_by_head(const std::string& text, const MakeRoom& make) {
  const auto head = nlohmann::json::parse(text);
  KeptState state;
  state.image = {.model = room_for(head["model"], make),
                 .position = {.step = head["step"]},
                 .world_size = head["world_size"]};
  state.branch.goings_back = head["goings_back"];
  for (const auto& range : head["abandoned"])
    state.branch.abandoned.push_back({.after = range[0], .until = range[1]});
  state.branch.begun_by = head["begun_by"];
  state.branch.path = head["path"];
  if (!head["optimizer"].is_null())
    state.image.optimizer = OptimizerSnapshot{.description = head["optimizer"],
                                              .tensors = room_for(head["moments"], make)};
  state.image.parts = room_for(head["parts"], make);
  return state;
}

// Empty tensors have no memory that could be sent.
Tensors packed_tensors(const CheckpointImage& image) {
  Tensors all;
  const auto add = [&](const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors)
      if (tensor.numel() > 0)
        all.push_back(tensor);
  };
  add(image.model);
  if (image.optimizer)
    add(image.optimizer->tensors);
  add(image.parts);
  return all;
}

// The tensors are never made: only their sizes are added up.
int64_t packed_bytes(const std::string& head) {
  int64_t bytes = 0;
  room_by_head(head, [&](const Int64s& shape, ScalarType type) {
    bytes += bytes_for(shape, type);
    return Tensor();
  });
  return bytes;
}

KeptState views_by_head(const std::string& head, const Tensor& bytes) {
  int64_t used = 0;
  return room_by_head(head, [&](const Int64s& shape, ScalarType type) {
    const Tensor flat = bytes.narrow(0, used, content_bytes(shape, type)).view(type);
    used += bytes_for(shape, type);
    return flat.view(shape);
  });
}

}  // namespace muster
