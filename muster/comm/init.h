// Making the default process group, for those who start processes themselves; muster::run does it for
// everybody else.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>

#include "muster/comm/nccl_options.h"
#include "muster/comm/process_group.h"

namespace c10d {
class Store;
}

namespace muster {

struct InitOptions {
  // auto, gloo, nccl, shm, shm+gloo, mpi; MUSTER_BACKEND wins, unless it is auto. auto: nccl where every rank
  // has a GPU of its own, else shm on one host, else gloo. mpi: ranks that an MPI launcher has started
  // (comm/mpi.h).
  std::string backend = "auto";
  // env:// (torchrun's and muster's variables), tcp://host:port (rank 0 serves), file:///path (ranks of one
  // host).
  std::string init_method = "env://";
  // Both or neither. They win over the environment, which may not contradict them.
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::chrono::milliseconds timeout{30 * 60 * 1000};  // of every collective; MUSTER_COLLECTIVE_TIMEOUT wins
  std::chrono::milliseconds init_timeout{5 * 60 * 1000};  // for all ranks to come together
  c10::Device device = c10::kCPU;                         // made current first when it is a CUDA device
  NcclOptions nccl = {};
};

// MUSTER_COLLECTIVE_TIMEOUT, or else what is given. Throws: invalid_argument for no time, or none above 0.
std::chrono::milliseconds collective_timeout(std::chrono::milliseconds given);

// Joins all ranks into one group. Collective: over all ranks. Blocking: until all have come or
// `init_timeout`. Throws: invalid_argument (rank out of range, duplicate rank, sizes that differ, unknown
// backend or method), timeout naming the missing ranks, unavailable (no CUDA device, a master that does not
// resolve, a port in use). Source: torch.distributed.init_process_group.
ProcessGroup init_process_group(const InitOptions& options = {});

// The same for those ranks alone that take part, numbered in the order of their ranks (for all, when none
// does). Nothing for the others, which may end at once; only rank 0, where it serves the store, comes back
// when the group has been shut down. Once a store. Collective: over all ranks. Throws: as above.
std::optional<ProcessGroup> init_process_group_of_some(const InitOptions& options, bool takes_part);

// The same over a store that the ranks share already (threads of one process, for instance).
ProcessGroup init_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                const InitOptions& options = {});

}  // namespace muster
