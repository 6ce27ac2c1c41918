#include "muster/train/kept_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/safetensors_dtype.h"

namespace muster {

namespace {

constexpr const char* kFromMemory = "a state in another rank's memory";  // for messages

// All of a state but its tensors' content.
std::string head_of(const KeptState& state) {
  const auto tensors = [](const NamedTensors& named) {
    const SafetensorsHead head = make_safetensors_head(named);
    return nlohmann::json{{"head", head.json}, {"bytes", head.data_bytes}};
  };
  const CheckpointImage& image = state.image;
  return nlohmann::json{
      {"step", image.position.step},
      {"world_size", image.world_size},
      {"begun_by", state.begun_by},
      {"path", state.path},
      {"model", tensors(image.model)},
      {"parts", tensors(image.parts)},
      {"optimizer", image.optimizer ? nlohmann::json(image.optimizer->description) : nlohmann::json()},
      {"moments", tensors(image.optimizer ? image.optimizer->tensors : NamedTensors{})}}
      .dump();
}

NamedTensors room_for(const nlohmann::json& tensors) {
  NamedTensors room;
  const std::string head = tensors["head"];
  const SafetensorsHeader header = parse_safetensors_header(head, tensors["bytes"], kFromMemory);
  for (const auto& [name, entry] : header.tensors)
    room.emplace(name, at::empty(entry.shape, scalar_type_of(entry)));
  return room;
}

KeptState room_by_head(const std::string& text) {
  const auto head = nlohmann::json::parse(text);
  KeptState state;
  state.image = {.model = room_for(head["model"]),
                 .optimizer = {},
                 .parts = room_for(head["parts"]),
                 .position = {.step = head["step"]},
                 .world_size = head["world_size"]};
  state.begun_by = head["begun_by"];
  state.path = head["path"];
  if (!head["optimizer"].is_null())
    state.image.optimizer =
        OptimizerSnapshot{.description = head["optimizer"], .tensors = room_for(head["moments"])};
  return state;
}

// In the order of names, which is the same on all ranks.
template <class Each>
void for_each_kept(const CheckpointImage& image, const Each& each) {
  const auto all_of = [&](const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors)
      if (tensor.numel() > 0) each(tensor);
  };
  all_of(image.model);
  if (image.optimizer) all_of(image.optimizer->tensors);
  all_of(image.parts);
}

// As bytes, since no backend moves every dtype.
at::Tensor bytes_in(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
}

}  // namespace

KeptStates& KeptStates::of(const std::string& folder, int rank) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<std::string, int>, KeptStates>;  // never destroyed
  const std::lock_guard lock(mutex);
  return all[{folder, get_env("RANK") ? 0 : rank}];
}

void KeptStates::keep(const KeptState& state) {
  is_whole_ = false;
  copy_image(state.image, state_.image);
  state_.model_of_rank0 = state.model_of_rank0;
  state_.parts_of_rank0 = state.parts_of_rank0;
  state_.rank = state.rank;
  state_.begun_by = state.begun_by;
  state_.path = state.path;
  is_whole_ = true;
}

KeptState as_rank0_had_it(const KeptState& mine) {
  KeptState state = mine;
  for (const auto& [name, tensor] : mine.model_of_rank0) state.image.model[name] = tensor;
  for (const auto& [name, tensor] : mine.parts_of_rank0) state.image.parts[name] = tensor;
  state.model_of_rank0.clear();
  state.parts_of_rank0.clear();
  return state;
}

// A rank has come to keep step n only when all have done it, since that asks all of them for their parts. So
// the newest state that any has is one that all may go on from.
std::optional<KeptWhere> find_newest_kept(ProcessGroup& group, const KeptStates& mine) {
  constexpr int64_t kNone = -1;
  const int64_t step = mine.newest() != nullptr ? mine.newest()->image.position.step : kNone;
  std::vector<int64_t> steps;
  for (const std::string& text : group.all_gather_bytes(cat(step), "kept states"))
    steps.push_back(std::stoll(text));
  KeptWhere where{.step = *std::max_element(steps.begin(), steps.end()), .source = 0, .others = {}};
  if (where.step == kNone) return std::nullopt;
  where.source = static_cast<int>(std::find(steps.begin(), steps.end(), where.step) - steps.begin());
  for (size_t rank = 0; rank < steps.size(); ++rank)
    if (steps[rank] != where.step) where.others.push_back(static_cast<int>(rank));
  return where;
}

void share_newest_kept(ProcessGroup& group, const KeptWhere& where, KeptStates& mine) {
  if (where.others.empty()) return;
  const bool is_source = group.rank() == where.source;
  const KeptState given = is_source ? as_rank0_had_it(*mine.newest()) : KeptState();
  std::string head = is_source ? head_of(given) : std::string();
  group.broadcast_bytes(head, where.source);
  if (is_source) {
    for (const int to : where.others)
      for_each_kept(given.image, [&](const at::Tensor& tensor) { group.send(bytes_in(tensor), to); });
  } else if (std::find(where.others.begin(), where.others.end(), group.rank()) != where.others.end()) {
    KeptState room = room_by_head(head);
    room.rank = group.rank();
    const KeptState& state = room;
    for_each_kept(state.image, [&](const at::Tensor& tensor) { group.recv(bytes_in(tensor), where.source); });
    mine.keep(state);
  }
}

}  // namespace muster
