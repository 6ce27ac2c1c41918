// The way in which the ranks meet, and the settings of the groups that they make.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>

#include "muster/comm/nccl_options.h"

namespace muster {

struct InitOptions {
  // auto, gloo, nccl, shm, shm+gloo or mpi. MUSTER_BACKEND overrides it, unless that is auto. auto:
  // nccl if every rank has its own GPU, else shm on one host, shm+gloo if some ranks share a host,
  // else gloo. mpi: for ranks started by an MPI launcher (comm/mpi/loader.h).
  std::string backend = "auto";
  // env:// (torchrun's and muster's variables), tcp://host:port (rank 0 serves) or file:///path
  // (ranks on one host).
  std::string init_method = "env://";
  // Set both or neither. They override the environment, which must not contradict them.
  std::optional<int> rank{};
  std::optional<int> world_size{};
  // The limit of every collective; MUSTER_COLLECTIVE_TIMEOUT overrides it.
  std::chrono::milliseconds timeout{30 * 60 * 1000};
  std::chrono::milliseconds init_timeout{5 * 60 * 1000};  // for all ranks to join
  c10::Device device = c10::kCPU;                         // a CUDA device is made current first
  NcclOptions nccl{};
};

}  // namespace muster
