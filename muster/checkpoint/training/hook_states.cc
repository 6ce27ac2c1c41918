// Tensors that are the same on all ranks are saved once, as "shared.<name>"; those that differ are
// gathered into one tensor with a row for each rank, as "own.<name>".
#include "muster/checkpoint/training/hook_states.h"

#include <string>

#include <ATen/ops/empty.h>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"

namespace muster {

namespace {

constexpr auto kShared = "shared.";
constexpr auto kOwn = "own.";

// Throws on every rank if the hooks remember different tensors: gathering them would not end.
void check_same_tensors(ProcessGroup& group, const HookState& mine) {
  std::string text;
  for (const auto& [name, tensor] : mine.own)
    text += cat(name, " ", tensor_text(tensor), "\n");
  const auto all = group.all_gather_bytes(text);
  for (const size_t rank : indices_of(all)) {
    if (all[rank] == all[0])
      continue;
    throw failed_precondition(
        "checkpoints: expected a hook that remembers the same tensors on every rank, got "
        "others on rank 0 and rank ",
        rank,
        "; load the same kind of state on all of them, or save after the next step");
  }
}

}  // namespace

// The tensors go through the group's device, since some backends move nothing else.
SavedState hook_states(ProcessGroup& group, const HookState& mine) {
  check_same_tensors(group, mine);
  SavedState state;
  for (const auto& [name, number] : mine.numbers)
    state.numbers[name] = as_number(number);
  for (const auto& [name, tensor] : mine.tensors)
    state.tensors[kShared + name] = tensor;
  for (const auto& [name, tensor] : mine.own) {
    Int64s sizes = tensor.sizes().vec();
    sizes.insert(sizes.begin(), group.size());
    const Tensor all = at::empty(sizes, tensor.options().device(group.device()));
    group.all_gather(all, tensor.to(group.device()).unsqueeze(0).contiguous());
    state.tensors[kOwn + name] = all.cpu();
  }
  return state;
}

// A row for each rank can only be given back to as many ranks.
HookState own_hook_state(const ProcessGroup& group, const SavedState& state) {
  HookState mine;
  for (const auto& [name, number] : state.numbers)
    mine.numbers[name] = state.whole_number("hook", name);
  const std::string shared = kShared, own = kOwn;
  for (const auto& [name, tensor] : state.tensors) {
    if (name.starts_with(shared))
      mine.tensors[name.substr(shared.size())] = tensor.to(group.device());
    if (name.starts_with(own) && tensor.size(0) == group.size())
      mine.own[name.substr(own.size())] = tensor[group.rank()].to(group.device());
  }
  return mine;
}

}  // namespace muster
