// How ranks find each other: from an init method to a store that all of them share, with every rank's
// identity compared before a backend is built.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "muster/comm/init.h"

namespace muster {

// What a rank tells the others about itself.
struct RankIdentity {
  int rank = 0;
  int world_size = 1;
  std::string host = {};  // host_identity(): equal where memory and devices are shared
  int pid = 0;
  uint64_t pid_namespace = 0;  // in which the pid means this process
  std::string device = {};     // "cpu", the GPU's UUID, or "cuda:0" where that is not known
  std::string backend = {};
  std::string libtorch = {};  // "2.15.0"
  std::string nccl = {};      // "2.27.3"; empty on a CPU
  bool takes_part = true;
};

// The store of `options.init_method`, and rank and size as explicit arguments or the environment give them.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;
  std::string master_addr;
  bool serves_store = false;  // in this process: it must stay while others use the store
};

// Blocking: until the store answers. Throws: invalid_argument, unavailable (unresolvable or silent master,
// port taken).
Rendezvous open_rendezvous(const InitOptions& options);

// init_process_group and init_process_group_of_some for ranks that have met already.
ProcessGroup init_process_group(const Rendezvous& meeting, const InitOptions& options);
std::optional<ProcessGroup> init_process_group_of_some(const Rendezvous& meeting, const InitOptions& options,
                                                       bool takes_part);

// Publishes `self`, waits for everybody, checks that all fit together. Returns all members in rank order.
// Collective: yes. Throws: timeout naming the missing ranks; invalid_argument for a rank that exists twice or
// world sizes that differ, naming both sides.
std::vector<RankIdentity> join(c10d::Store& store, const RankIdentity& self,
                               std::chrono::milliseconds timeout);

// The backend for these members: "nccl" when every one has a GPU of its own, else "shm" when all are on one
// host, "shm+gloo" when some are, else "gloo". Throws: invalid_argument when one was asked for that cannot
// work, naming the ranks in its way: NCCL with a CPU rank or with two ranks on one GPU, shared memory with
// two hosts.
std::string choose_backend(const std::vector<RankIdentity>& members, const std::string& asked);

}  // namespace muster
