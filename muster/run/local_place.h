// Finds the device of a rank whose launcher gives only rank and size: one pod per rank, processes
// started by hand. The ranks exchange their hosts and visible GPUs, because nothing else tells who
// shares them. For run.cc.
#pragma once

#include <optional>
#include <vector>

#include "muster/base/clock.h"
#include "muster/comm/rendezvous/members.h"
#include "muster/comm/rendezvous/rendezvous.h"
#include "muster/run/rank_device.h"

namespace muster {

struct LocalPlace {
  int local_rank = 0;  // among the ranks of its host
  int local_world_size = 1;
  int host = 0;  // in order of the hosts' first ranks
  int num_hosts = 1;
  int gpu_rank = 0;  // among the ranks of its host that see the same GPUs
  int gpu_world_size = 1;
};

// The place of `rank` among `members`, whose `device` lists the GPUs visible to each.
LocalPlace local_place(const std::vector<RankIdentity>& members, int rank);

// Sets the rank's place in `env`, and finds its device as device_of_rank does.
// Collective: over all ranks.
// Blocking: until all have joined, at most `timeout`.
// Throws: as join and device_by_local_rank; unavailable, on every rank, naming a rank without a
// device.
std::optional<RankDevice> device_by_hosts(RankEnv& env,
                                          const Rendezvous& rendezvous,
                                          Surplus surplus,
                                          milliseconds timeout);

}  // namespace muster
