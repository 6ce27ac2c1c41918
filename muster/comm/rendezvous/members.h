// Each rank tells the others who it is, and all is compared before a backend is built.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "muster/base/clock.h"
#include "muster/store/rank_identity.h"

namespace muster {

// Publishes `self`, waits for everybody, checks that all fit together. Returns all members in rank
// order. Collective: yes. Throws: timeout naming the missing ranks; invalid_argument for a rank
// that exists twice or world sizes that differ, naming both sides.
RankIdentities join(c10d::Store& store, const RankIdentity& self, milliseconds timeout);

// The backend for these members: "nccl" when every one has a GPU of its own, else "shm" when all
// are on one host, "shm+gloo" when some are, else "gloo". Throws: invalid_argument when one was
// asked for that cannot work, naming the ranks in its way: NCCL with a CPU rank or with two ranks
// on one GPU, shared memory with two hosts.
std::string choose_backend(const RankIdentities& members, const std::string& asked);

}  // namespace muster
