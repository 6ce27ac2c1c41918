// Each rank tells the others who it is, and all is compared before a backend is built.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace muster {

// A rank tells the others this about itself.
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

// Publishes `self`, waits for everybody, checks that all fit together. Returns all members in rank
// order. Collective: yes. Throws: timeout naming the missing ranks; invalid_argument for a rank
// that exists twice or world sizes that differ, naming both sides.
std::vector<RankIdentity> join(c10d::Store& store,
                               const RankIdentity& self,
                               std::chrono::milliseconds timeout);

// The backend for these members: "nccl" when every one has a GPU of its own, else "shm" when all
// are on one host, "shm+gloo" when some are, else "gloo". Throws: invalid_argument when one was
// asked for that cannot work, naming the ranks in its way: NCCL with a CPU rank or with two ranks
// on one GPU, shared memory with two hosts.
std::string choose_backend(const std::vector<RankIdentity>& members, const std::string& asked);

}  // namespace muster
