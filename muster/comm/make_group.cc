// Builds a process group: its backends, its name, and what watches it. Each part has a prefix of
// its own in the store. NCCL comes before the host's backend, because all of a parent's ranks must
// come to a split.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/gloo/gloo.h"
#include "muster/comm/group_state.h"
#include "muster/comm/hierarchical/hierarchical.h"
#include "muster/comm/hierarchical/over_gloo.h"
#include "muster/comm/interrupt.h"
#include "muster/comm/mpi/loader.h"
#include "muster/comm/nccl/gpu_graph.h"
#include "muster/comm/nccl/nccl.h"
#include "muster/comm/nccl/plugin.h"
#include "muster/comm/shm/backend.h"
#include "muster/trace/activity.h"

namespace muster {

int64_t next_generation(c10d::Store& store, int size) {
  int64_t departures = 0;
  translate_failures("rendezvous", [&] { departures = store.add(kDepartures, 0); });
  return departures / size;
}

namespace {

constexpr std::chrono::seconds kToAbort{5};

// muster has the time limits of NCCL's calls.
constexpr std::chrono::hours kUnlimited{24 * 365};

// The backend for tensors on the CPU, and for others where there is no NCCL.
BackendPtr backend_for_cpu(const StorePtr& store, int rank, int size, const GroupOptions& options) {
  if (options.backend == "shm")
    return make_shm(store_part(store, "shm"), rank, size, options.timeout, options.names);
  const auto gloo = [&](const StorePtr& of_ranks, int gloo_rank, int gloo_size) {
    return make_gloo(of_ranks, gloo_rank, gloo_size, options.timeout, options.master_addr);
  };
  if (options.backend == "mpi")
    return make_mpi(store_part(store, "mpi"), rank, size, options.of_all_ranks, options.timeout);
  if (options.backend == "shm+gloo")
    return make_hierarchical(
        store_part(store, "hosts"), rank, options.hosts, options.timeout, gloo, options.names);
  return c10::make_intrusive<OverGloo>(
      gloo(store_part(store, "gloo"), rank, size), "gloo", options.names);
}

// The job's numbers of the ranks give NCCL's logs, and a split, the same names on all of them. A
// group that may be interrupted can be so while it connects, for which NCCL must not block.
BackendPtr make_nccl_backend(const StorePtr& store,
                             const ProcessGroup::State& state,
                             GroupTrack& track) {
  NcclOptions options = state.options.nccl;
  options.nonblocking |= groups_are_tracked();
  return make_nccl(
      store,
      {.rank = state.rank,
       .size = state.size,
       .ordinal = state.options.device.index(),
       .watchdog_timeout = kUnlimited,
       .connect_timeout = std::max(state.options.connect_timeout, state.options.timeout),
       .name = state.group_name,
       .ranks_of_job = {state.names->ranks.begin(), state.names->ranks.end()},
       .options = options,
       .parent = state.options.nccl_parent,
       .made = [&](const BackendPtr& nccl) {
         track.add(nccl);
         state.expect_not_interrupted("connect");  // else it would connect in vain
       }});
}

// A collective of NCCL that a dead rank does not come to keeps the GPU, and whatever waits for it,
// for ever. It leaves no result in memory, so that the process ends with its communicator.
LateWatch::Lost end_without(const BackendPtr& nccl) {
  return [backend = c10::weak_intrusive_ptr<c10d::Backend>(nccl)](const std::string& what) {
    log_error(what, "; NCCL's communicator is aborted, and this rank ends");
    // The abort may wait for calls that are under way.
    std::thread([] {
      std::this_thread::sleep_for(kToAbort);
      ::_exit(1);
    }).detach();
    try {
      if (const auto held = backend.lock())
        end_communicator([&] { held->abort(); });
    } catch (const std::exception& error) {
      log_warning("NCCL's communicator was not aborted: ", error.what());
    }
    ::_exit(1);
  };
}

// Where ranks are replaced in place, the process goes on with another group. A group that was
// interrupted already says nothing of that one.
LateWatch::Lost interrupt_all(int64_t interruptions) {
  return [interruptions](const std::string& what) {
    if (num_interruptions() != interruptions)
      return;
    log_warning(what, "; NCCL's communicators are aborted");
    interrupt_groups();
  };
}

std::string name_of_ranks(const Ints& ranks) {
  constexpr size_t kMostNamed = 8;
  if (ranks.size() <= kMostNamed)
    return cat("ranks ", join(ranks, ","));
  return cat(ranks.size(), " ranks ", ranks[0], ",", ranks[1], "…", ranks.back());
}

// "world", "ranks 0,2", or for the second such group "ranks 0,2 (2)". All ranks of a group give it
// one name, since they make their groups in one order.
std::string group_name_of(bool of_all_ranks, const RankNames& names) {
  static std::mutex mutex;
  static auto& made = *new std::map<std::string, int>;  // never destroyed
  const std::string name =
      (of_all_ranks ? "world" : name_of_ranks(names.ranks)) + group_name_suffix();
  const Lock lock(mutex);
  const int number = ++made[name];
  return number == 1 ? name : cat(name, " (", number, ")");
}

using C10dType = c10d::ProcessGroup::BackendType;

// c10d's own name for the kind of a backend.
C10dType c10d_type_of(const std::string& backend) {
  if (backend.starts_with("shm"))
    return C10dType::CUSTOM;
  return backend == "mpi" ? C10dType::MPI : C10dType::GLOO;
}

// Makes c10d's group and its backends.
void make_backends(ProcessGroup::State& state) {
  const GroupOptions& options = state.options;
  state.group = c10::make_intrusive<c10d::ProcessGroup>(
      store_part(state.store, "c10d"), state.rank, state.size);
  GroupTrack track;
  BackendPtr nccl;
  if (state.can.on_gpus)
    nccl = make_nccl_backend(store_part(state.store, "nccl"), state, track);
  state.options.nccl_parent.reset();
  const auto on_host = backend_for_cpu(state.store, state.rank, state.size, options);
  track.add(on_host);
  const C10dType type = c10d_type_of(options.backend);
  state.group->setBackend(kCPU, type, on_host);
  state.group->setDefaultBackend(type);
  if (nccl) {
    state.group->setBoundDeviceId(options.device);
    state.group->setBackend(kCUDA, C10dType::NCCL, nccl);
    state.group->setDefaultBackend(C10dType::NCCL);
  } else if (options.device.is_cuda()) {
    state.group->setBackend(kCUDA, type, on_host);  // staged through host memory
  }
  if (options.backend == "shm" || options.backend == "mpi")
    state.backend = on_host.get();
  if (options.backend == "shm")
    state.blocking = dynamic_cast<BlockingCollectives*>(on_host.get());
  state.group->setGroupName(cat("muster: ", state.group_name));
  on_host->setGroupDesc(state.group_name);
}

// A backend that does not compare calls itself needs an agreement of the ranks.
void make_agreement(ProcessGroup::State& state) {
  const bool every_call = get_env("TORCH_DISTRIBUTED_DEBUG") == "DETAIL";
  state.agreement = std::make_shared<Agreement>(
      store_part(state.store, "agreement"), state.rank, state.size, every_call, *state.names);
  if (!state.can.on_gpus) {
    state.late_watch = std::make_unique<LateWatch>();
    return;
  }
  const auto lost = groups_are_tracked() ? interrupt_all(state.interruptions)
                                         : end_without(state.group->getBackend(kCUDA));
  state.late_watch = std::make_unique<LateWatch>(lost, state.options.device);
}

}  // namespace

ProcessGroup make_process_group(const StorePtr& root,
                                int rank,
                                int size,
                                const GroupOptions& options) {
  auto state = std::make_shared<ProcessGroup::State>();
  state->options = options;
  state->can = capabilities_of(options.backend);
  state->interruptions = num_interruptions();
  state->departures = root;
  state->generation = next_generation(*root, size);
  state->store = store_part(root, cat(state->generation));
  state->rank = rank;
  state->size = size;
  state->names = std::make_shared<RankNames>(options.names.ranks.empty() ? RankNames::of_all(size)
                                                                         : options.names);
  state->parent_ranks = numbers_below(size);
  state->group_name = group_name_of(options.of_all_ranks, *state->names);
  translate_failures(cat("process group of ", size, " (rank ", state->name(), ")"),
                     [&] { make_backends(*state); });
  if (state->can.on_gpus && Activity::get() != nullptr)
    state->gpu_ends = std::make_shared<GpuEnds>(options.device);
  if (size > 1 && !state->can.compares_calls)
    make_agreement(*state);
  return ProcessGroup(std::move(state));
}

}  // namespace muster
