// Every rank sends its state as bytes, and the state of all of them has each rank's names behind
// its number: "2/weight". Names and texts may be any bytes, which JSON cannot hold as they are.
#include "muster/checkpoint/training/rank_states.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/byte_reader.h"
#include "muster/base/byte_text.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/tensor_bytes.h"

namespace muster {

namespace {

constexpr auto kRanks = "ranks";  // the number of ranks that saved

using nlohmann::json;

// Packs a state: a number of bytes, a description of that many bytes in JSON, then the elements of
// the tensors one after the other. unpack_state() reads it.
std::string packed(const SavedState& state) {
  auto tensors = json::array();
  std::string elements;
  for (const auto& [name, tensor] : state.tensors) {
    const Tensor here = tensor.detach().cpu().contiguous();
    tensors.push_back({text_of_bytes(name), here.scalar_type(), here.sizes().vec()});
    elements += bytes_as_text(here);
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

// Reads a name or a text that packed() has written.
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
    const auto type = entry[1].get<ScalarType>();
    Tensor tensor = at::empty(entry[2].get<Int64s>(), type);
    copy_bytes(reader.take(tensor.nbytes()), tensor);
    all.tensors[prefix + told_bytes(entry[0])] = std::move(tensor);
  }
}

// All ranks get all states, since only rank 0 writes, and any rank may become rank 0.
SavedState states_of_ranks(ProcessGroup& group, const SavedState& mine) {
  const Strings states = group.all_gather_bytes(packed(mine), "states of ranks");
  SavedState all;
  all.numbers[kRanks] = group.size();
  for (const size_t rank : indices_of(states))
    unpack_state(all, cat(rank, "/"), states[rank]);
  return all;
}

// Each rank takes its own names and leaves the others' alone.
SavedState own_state(const ProcessGroup& group, const std::string& owner, const SavedState& all) {
  const int64_t ranks = all.whole_number(owner, kRanks);
  if (ranks != group.size()) {
    throw failed_precondition("checkpoints: expected ",
                              plural(ranks, "rank"),
                              ", of which each saved a state of '",
                              owner,
                              "', got ",
                              group.size(),
                              "; start as many ranks, or add a part that is the same on all");
  }
  const auto prefix = cat(group.rank(), "/");
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
