// How ranks come together, and what their groups are made with.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>

#include "muster/comm/nccl_options.h"

namespace muster {

struct InitOptions {
  // auto, gloo, nccl, shm, shm+gloo, mpi; MUSTER_BACKEND wins, unless it is auto. auto: nccl where every rank
  // has a GPU of its own, else shm on one host, shm+gloo where some ranks share a host, else gloo. mpi: ranks
  // that an MPI launcher has started (comm/mpi/loader.h).
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

}  // namespace muster
