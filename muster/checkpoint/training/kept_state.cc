// A process keeps one state for each folder of checkpoints. After ranks were replaced, the ranks
// find the newest state that any of them has, and the others get it from the first rank that has
// it.
#include "muster/checkpoint/training/kept_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/packed_state.h"

namespace muster {

namespace {

// Returns the tensor's memory as bytes, since no backend moves every dtype.
Tensor bytes_in(const Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  return at::from_blob(tensor.data_ptr(), {bytes}, kByte);
}

}  // namespace

// While the copy is not finished there is no state: a rank that is stopped here must not go on from
// half of it.
void KeptStates::keep(const KeptState& state) {
  is_whole_ = false;
  copy_image(state.image, state_.image).wait();
  state_.model_of_rank0 = state.model_of_rank0;
  state_.parts_of_rank0 = state.parts_of_rank0;
  state_.rank = state.rank;
  state_.branch = state.branch;
  is_whole_ = true;
}

// Everything else in the state is the same on all ranks.
KeptState as_rank0_had_it(const KeptState& mine) {
  KeptState state = mine;
  for (const auto& [name, tensor] : mine.model_of_rank0)
    state.image.model[name] = tensor;
  for (const auto& [name, tensor] : mine.parts_of_rank0)
    state.image.parts[name] = tensor;
  state.model_of_rank0.clear();
  state.parts_of_rank0.clear();
  return state;
}

// A rank has come to keep step n only when all have done it, since that asks all of them for their
// parts. So the newest state that any has is one that all may go on from.
std::optional<KeptWhere> find_newest_kept(ProcessGroup& group, const KeptStates& mine) {
  constexpr int64_t kNone = -1;
  const int64_t version = mine.newest() != nullptr ? mine.newest()->version() : kNone;
  Int64s versions = mapped(group.all_gather_bytes(cat(version), "kept states"),
                           [](const auto& text) -> int64_t { return std::stoll(text); });
  const int64_t newest = std::ranges::max(versions);
  if (newest == kNone)
    return std::nullopt;
  std::optional<int> source;
  Ints others;
  for (const int rank : indices_below(group.size())) {
    if (versions[rank] != newest)
      others.push_back(rank);
    else if (!source)
      source = rank;
  }
  return KeptWhere{.source = *source, .others = others};
}

// One source sends to all, so that all of them get the same bits.
void share_newest_kept(ProcessGroup& group, const KeptWhere& where, KeptStates& mine) {
  if (where.others.empty())
    return;
  const bool is_source = group.rank() == where.source;
  const bool lacks_it = contains(where.others, group.rank());
  const KeptState given = is_source ? as_rank0_had_it(*mine.newest()) : KeptState();
  std::string head = is_source ? head_of(given) : std::string();
  group.broadcast_bytes(head, where.source);
  if (is_source) {
    for (const int to : where.others)
      for (const Tensor& tensor : packed_tensors(given.image))
        group.send(bytes_in(tensor), to);
  }
  if (lacks_it) {
    const auto make = [](const Int64s& shape, ScalarType type) {
      return at::empty(shape, type);
    };
    KeptState state = room_by_head(head, make);
    state.rank = group.rank();
    for (const Tensor& tensor : packed_tensors(state.image))
      group.recv(bytes_in(tensor), where.source);
    mine.keep(state);
  }
}

}  // namespace muster
