#include "muster/train/rank_states.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "muster/base/byte_text.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr const char* kRanks = "ranks";

// All but the tensors' elements.
std::string description_of(const SavedState& state) {
  auto tensors = nlohmann::json::array();
  for (const auto& [name, tensor] : state.tensors)
    tensors.push_back({text_of_bytes(name), static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  auto numbers = nlohmann::json::array();
  for (const auto& [name, number] : state.numbers)
    numbers.push_back({text_of_bytes(name), std::bit_cast<uint64_t>(number)});
  auto texts = nlohmann::json::array();
  for (const auto& [name, text] : state.texts) texts.push_back({text_of_bytes(name), text_of_bytes(text)});
  return nlohmann::json{{"tensors", tensors}, {"numbers", numbers}, {"texts", texts}}.dump();
}

std::string unpacked(const nlohmann::json& json) {
  return bytes_of_text(json.get<std::string>(), "a rank's state");
}

}  // namespace

SavedState states_of_ranks(ProcessGroup& group, const SavedState& mine) {
  const std::vector<std::string> descriptions =
      group.all_gather_bytes(description_of(mine), "states of ranks");
  SavedState all;
  all.numbers[kRanks] = group.size();
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto state = nlohmann::json::parse(descriptions[static_cast<size_t>(rank)]);
    const std::string prefix = cat(rank, "/");
    for (const auto& number : state["numbers"])
      all.numbers[prefix + unpacked(number[0])] = std::bit_cast<double>(number[1].get<uint64_t>());
    for (const auto& text : state["texts"]) all.texts[prefix + unpacked(text[0])] = unpacked(text[1]);
    for (const auto& entry : state["tensors"]) {
      const std::string name = unpacked(entry[0]);
      const auto type = static_cast<at::ScalarType>(entry[1].get<int>());
      const at::Tensor tensor = rank == group.rank()
                                    ? mine.tensors.at(name).detach().to(group.device()).contiguous()
                                    : at::empty(entry[2].get<std::vector<int64_t>>(),
                                                at::TensorOptions(type).device(group.device()));
      group.broadcast(tensor, rank);
      all.tensors[prefix + name] = tensor.cpu();
    }
  }
  return all;
}

SavedState own_state(const ProcessGroup& group, const std::string& owner, const SavedState& all) {
  const int64_t ranks = all.whole_number(owner, kRanks);
  if (ranks != group.size()) {
    throw Error(ErrorCode::failed_precondition,
                cat("checkpoints: expected ", ranks, " ranks, of which each saved a state of '", owner,
                    "', got ", group.size(), "; start as many ranks, or add a part that is the same on all"));
  }
  const std::string prefix = cat(group.rank(), "/");
  SavedState mine;
  const auto take = [&](const auto& from, auto& to) {
    for (const auto& [name, value] : from)
      if (name.starts_with(prefix)) to[name.substr(prefix.size())] = value;
  };
  take(all.numbers, mine.numbers);
  take(all.tensors, mine.tensors);
  take(all.texts, mine.texts);
  return mine;
}

}  // namespace muster
