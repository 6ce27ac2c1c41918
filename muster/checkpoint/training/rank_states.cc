#include "muster/checkpoint/training/rank_states.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "muster/base/byte_reader.h"
#include "muster/base/byte_text.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr const char* kRanks = "ranks";

using nlohmann::json;

// A number of bytes, a description of that many in JSON, then the elements of the tensors one after
// the other.
std::string packed(const SavedState& state) {
  auto tensors = json::array();
  std::string elements;
  for (const auto& [name, tensor] : state.tensors) {
    const at::Tensor here = tensor.detach().cpu().contiguous();
    tensors.push_back(
        {text_of_bytes(name), static_cast<int>(here.scalar_type()), here.sizes().vec()});
    elements.append(static_cast<const char*>(here.const_data_ptr()), here.nbytes());
  }
  auto numbers = json::array();
  for (const auto& [name, number] : state.numbers)
    numbers.push_back({text_of_bytes(name), std::bit_cast<uint64_t>(number)});
  auto texts = json::array();
  for (const auto& [name, text] : state.texts)
    texts.push_back({text_of_bytes(name), text_of_bytes(text)});
  const std::string description =
      json{{"tensors", tensors}, {"numbers", numbers}, {"texts", texts}}.dump();
  return cat(description.size(), " ", description, elements);
}

std::string told_bytes(const json& text) {
  return bytes_of_text(text.get<std::string>(), "a rank's state");
}

}  // namespace

void unpack_state(SavedState& all, const std::string& prefix, const std::string& bytes) {
  ByteReader reader(bytes, "a rank's state");
  const auto description = json::parse(reader.take(reader.take_number(' ')));
  for (const auto& number : description["numbers"])
    all.numbers[prefix + told_bytes(number[0])] = std::bit_cast<double>(number[1].get<uint64_t>());
  for (const auto& text : description["texts"])
    all.texts[prefix + told_bytes(text[0])] = told_bytes(text[1]);
  for (const auto& entry : description["tensors"]) {
    at::Tensor tensor = at::empty(entry[2].get<std::vector<int64_t>>(),
                                  static_cast<at::ScalarType>(entry[1].get<int>()));
    const std::string_view elements = reader.take(tensor.nbytes());
    if (!elements.empty())
      std::memcpy(tensor.mutable_data_ptr(), elements.data(), elements.size());
    all.tensors[prefix + told_bytes(entry[0])] = std::move(tensor);
  }
}

SavedState states_of_ranks(ProcessGroup& group, const SavedState& mine) {
  const std::vector<std::string> states = group.all_gather_bytes(packed(mine), "states of ranks");
  SavedState all;
  all.numbers[kRanks] = group.size();
  for (size_t rank = 0; rank < states.size(); ++rank)
    unpack_state(all, cat(rank, "/"), states[rank]);
  return all;
}

SavedState own_state(const ProcessGroup& group, const std::string& owner, const SavedState& all) {
  const int64_t ranks = all.whole_number(owner, kRanks);
  if (ranks != group.size()) {
    throw Error(ErrorCode::failed_precondition,
                cat("checkpoints: expected ",
                    ranks,
                    " ranks, of which each saved a state of '",
                    owner,
                    "', got ",
                    group.size(),
                    "; start as many ranks, or add a part that is the same on all"));
  }
  const std::string prefix = cat(group.rank(), "/");
  SavedState mine;
  const auto take = [&](const auto& from, auto& to) {
    for (const auto& [name, value] : from)
      if (name.starts_with(prefix))
        to[name.substr(prefix.size())] = value;
  };
  take(all.numbers, mine.numbers);
  take(all.tensors, mine.tensors);
  take(all.texts, mine.texts);
  return mine;
}

}  // namespace muster
