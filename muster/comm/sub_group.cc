// Makes groups of some of a group's ranks. All ranks of the parent first compare the lists: ranks
// with different lists would wait for each other in groups that never come together.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/group_state.h"
#include "muster/comm/host/choice.h"
#include "muster/comm/nccl/nccl.h"
#include "muster/comm/process_group_call.h"

namespace muster {

namespace {

// A rank may be in a group once.
void check_members(const Ints& ranks, int size, int own_name) {
  const std::set<int> distinct(ranks.begin(), ranks.end());
  const bool all_differ = !ranks.empty() && distinct.size() == ranks.size();
  if (all_differ && *distinct.begin() >= 0 && *distinct.rbegin() < size)
    return;
  throw invalid_argument("new_group: expected different ranks between 0 and ",
                         size - 1,
                         ", got [",
                         join(ranks, ", "),
                         "] (rank ",
                         own_name,
                         ")");
}

// The options of the group that some ranks of `parent` make. A part of several hosts' ranks may be
// on one host.
GroupOptions options_of_part(const ProcessGroup::State& parent, const Ints& ranks) {
  GroupOptions options = parent.options;
  options.hosts.clear();
  options.hosts = mapped(ranks, [&](const int member) { return parent.options.hosts.at(member); });
  if (options.backend == "shm+gloo")
    options.backend = choose_host_backend(options.hosts);
  options.of_all_ranks = false;
  options.names = parent.names->part(ranks);
  options.names.sub_group = std::ssize(ranks) < parent.size || parent.names->sub_group;
  return options;
}

// NCCL's backend of the group, where its sub-groups are split from it.
BackendPtr split_parent(const ProcessGroup::State& state) {
  if (!state.can.on_gpus || !state.options.nccl.split)
    return {};
  return state.group->getBackend(kCUDA);
}

}  // namespace

// A backend that compares calls compares shapes alone: there the lists are gathered. Elsewhere the
// number makes each call a new one: lists that were made before would not be compared, and the
// ranks would wait in groups of their own until the time limit.
void ProcessGroup::agree_on_members(const Ints& ranks) {
  const auto mine = cat("[", join(ranks, ", "), "]");
  if (!state_->can.compares_calls) {
    ProcessGroupCall call("new_group", *this);
    call.without_tensors();
    call.in_common([&] { return cat(mine, ", number ", state_->sub_groups); });
    call.start_barrier(Caller::waits).wait();
    return;
  }
  const auto lists = all_gather_bytes(mine, "new_group");
  for (const int other : indices_below(size())) {
    const std::string& theirs = lists[other];
    if (theirs == mine)
      continue;
    throw invalid_argument(
        "new_group: expected the same list on every rank, got ",
        mine,
        " on rank ",
        state_->name(),
        " and ",
        theirs,
        " on rank ",
        job_rank(other),
        "; call it on all ranks of the group, with the same lists in the same order");
  }
}

// All ranks of the parent come here, also those outside of the new group.
std::optional<ProcessGroup> ProcessGroup::new_group(const Ints& ranks) {
  check_members(ranks, size(), state_->name());
  const auto name = cat("group/", state_->sub_groups++, "/", join(ranks, ","));
  agree_on_members(ranks);
  const auto parent = split_parent(*state_);
  const auto place = std::ranges::find(ranks, rank());
  if (place == ranks.end()) {
    if (parent)
      stay_out_of_split(*parent, device());
    return std::nullopt;
  }
  GroupOptions options = options_of_part(*state_, ranks);
  options.nccl_parent = parent;
  const auto own_rank = static_cast<int>(place - ranks.begin());
  const auto size_of_group = static_cast<int>(std::ssize(ranks));
  ProcessGroup group =
      make_process_group(store_part(state_->store, name), own_rank, size_of_group, options);
  group.state_->parent_ranks = ranks;
  return group;
}

}  // namespace muster
