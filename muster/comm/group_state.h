// The state of a ProcessGroup, for the sources beside it.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/gate.h"
#include "muster/base/lists.h"
#include "muster/base/rank_names.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/agreement.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/fork_guard.h"
#include "muster/comm/call/unseen_graph.h"
#include "muster/comm/capabilities.h"
#include "muster/comm/host/backend.h"
#include "muster/comm/late_watch.h"
#include "muster/comm/nccl/gpu_ends.h"
#include "muster/comm/nccl_options.h"
#include "muster/comm/process_group.h"

namespace muster {

// The options for a group's backends over a store, also of sub-groups.
struct GroupOptions {
  std::string backend = "gloo";  // gloo, nccl, shm, shm+gloo, mpi
  Strings hosts{};               // host_identity() of each rank
  Device device = kCPU;
  milliseconds timeout{0};
  std::string master_addr{};  // chooses the network interface
  // The time for all ranks to connect, where the backend has a limit of its own for that.
  milliseconds connect_timeout{0};
  NcclOptions nccl{};
  BackendPtr nccl_parent{};  // split from it; while the group is made
  bool awaited = false;      // a process outside of the group waits for its end, good or not
  bool of_all_ranks = true;  // of the job; a part of them has numbers of its own
  RankNames names{};         // what messages call the ranks; their own numbers without
};

struct ProcessGroup::State : std::enable_shared_from_this<ProcessGroup::State> {
  GroupOptions options;
  Capabilities can;
  ForkMark fork;                                 // a forked child has no part in it
  Gate gate;                                     // of calls that use the group, until it goes
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // null after shutdown
  c10d::Backend* backend = nullptr;         // the group's own, where it has one of muster's alone
  BlockingCollectives* blocking = nullptr;  // the same, where it is for the CPU
  StorePtr store;
  std::shared_ptr<Agreement> agreement;
  std::unique_ptr<LateWatch> late_watch;  // where there is one
  std::shared_ptr<GpuEnds> gpu_ends;      // for GPUs' collectives, where there is an activity file
  Ints parent_ranks;
  std::shared_ptr<const RankNames> names;
  std::string group_name;  // in logs, and the rank's activity file: "world", "ranks 0,2"
  int rank = 0;
  int size = 1;
  std::mutex turn;  // to start a call that ranks agree on
  std::atomic<int64_t> sequence{0};
  std::atomic<int64_t> calls{0}, bytes{0};  // Traffic
  std::atomic<bool> is_in_graph{false};     // a call was captured in a CUDA graph
  int64_t sub_groups = 0;
  int64_t interruptions = 0;  // of the process, before this group
  // Ranks count there those that left in good order. It outlives this group when the store does, so
  // that the next group of the same ranks (`generation` + 1) reads none of this one's keys.
  StorePtr departures;
  int64_t generation = 0;
  ToldOfGraph told_of_input = std::make_shared<std::atomic<bool>>(false);
  ToldOfGraph told_of_backward = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<bool>> abandoned = std::make_shared<std::atomic<bool>>(false);
  ~State();

  int name() const { return (*names)[rank]; }
  // Whether this rank tells the program of a graph that ends in a call. One rank alone loses none.
  bool tells_of(const Tensor& given) const { return rank == 0 && size > 1 && has_graph(given); }

  // What NCCL has not ended properly is no result. Throws: failed_precondition.
  void expect_not_interrupted(const char* operation) const;

  void count(const Tensor& given) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(static_cast<int64_t>(given.nbytes()), std::memory_order_relaxed);
  }
};

inline constexpr auto kDepartures = "departures";
inline constexpr auto kAbandoned = "abandoned";

// The number of the group of `size` ranks that comes next over `store`: so many such groups were
// left in good order before.
int64_t next_generation(c10d::Store& store, int size);

// Builds the backends and the group. Collective: over the ranks that share `store`. Throws:
// backend_failed, timeout.
ProcessGroup make_process_group(const StorePtr& store,
                                int rank,
                                int size,
                                const GroupOptions& options);

}  // namespace muster
