// Every rank tells the others its host and the UUIDs of the GPUs that it sees, through the store of
// the rendezvous. A rank's place among those with the same host and the same GPUs takes the part of
// the local rank that the launcher did not tell. The ranks then compare whether each has found a
// device: one that has none must not leave the others waiting in the group.
#include "muster/run/local_place.h"

#include <torch/version.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <string>
#include <thread>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/host_identity.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kLastWords{30};  // for all ranks to read why one fails
constexpr auto kAdvice = "; set LOCAL_RANK for every rank, or for none";

// Ranks that see the same UUIDs share these GPUs.
std::string gpus_seen(const SeenMachine& seen) {
  const Host& host = seen.machine.hosts.at(0);
  return join(mapped(usable_gpus(host, seen.masks).gpus,
                     [&](const UsableGpu& gpu) { return uuid_of(host, gpu).value; }),
              ",");
}

// Collective. Returns what every rank says about its device, under the name `about` in the store.
std::vector<RankIdentity> exchange(const Rendezvous& rendezvous,
                                   const char* about,
                                   const std::string& device,
                                   milliseconds timeout) {
  c10d::PrefixStore store(about, rendezvous.store);
  try {
    return join(store,
                {.rank = rendezvous.rank,
                 .world_size = rendezvous.world_size,
                 .host = host_identity(),
                 .pid = ::getpid(),
                 .device = device,
                 .libtorch = TORCH_VERSION},
                timeout);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout)
      throw;
    throw Error(error.code(), error.message() + kAdvice);
  }
}

// Collective. Tells the others that this rank has a device, or its `trouble`. Throws: unavailable
// on a rank with a device, if another has none.
void compare_devices(const Rendezvous& rendezvous,
                     const std::string& trouble,
                     milliseconds timeout) {
  const auto members = exchange(rendezvous, "devices", trouble, timeout);
  const RankIdentity* const failed =
      element_where(members, [](const RankIdentity& member) { return !member.device.empty(); });
  if (failed == nullptr)
    return;
  // The rank that serves the store must not end before all have read why.
  rendezvous.store->add("devices/read", 1);
  const Deadline deadline(kLastWords);
  const auto all_have_read = [&] {
    return rendezvous.store->add("devices/read", 0) >= rendezvous.world_size;
  };
  while (rendezvous.serves_store && !all_have_read() && !deadline.passed())
    std::this_thread::sleep_for(milliseconds(20));
  if (trouble.empty())
    throw unavailable("rank ", failed->rank, ": ", failed->device);
}

}  // namespace

LocalPlace local_place(const std::vector<RankIdentity>& members, int rank) {
  const RankIdentity& self = members.at(rank);
  LocalPlace place{.local_world_size = 0, .num_hosts = 0, .gpu_world_size = 0};
  Strings hosts;
  for (const RankIdentity& member : members) {
    if (!contains(hosts, member.host))
      hosts.push_back(member.host);
    if (member.host != self.host)
      continue;
    const bool before = member.rank < rank;
    ++place.local_world_size;
    if (before)
      ++place.local_rank;
    if (member.device != self.device)
      continue;
    ++place.gpu_world_size;
    if (before)
      ++place.gpu_rank;
  }
  place.host = *index_with(hosts, self.host);
  place.num_hosts = int_size(hosts);
  return place;
}

// device_by_local_rank() is asked as if the ranks that share GPUs were alone on the host.
std::optional<RankDevice> device_by_hosts(RankEnv& env,
                                          const Rendezvous& rendezvous,
                                          Surplus surplus,
                                          milliseconds timeout) {
  const SeenMachine seen = see_machine();
  const LocalPlace place =
      local_place(exchange(rendezvous, "hosts", gpus_seen(seen), timeout), rendezvous.rank);
  env.group_rank = place.host;
  env.group_world_size = place.num_hosts;
  // Ranks that see the same GPUs share them; ranks of other pods of the host have GPUs of their
  // own.
  env.local_rank = place.gpu_rank;
  env.local_world_size = place.gpu_world_size;
  std::optional<RankDevice> found;
  try {
    found = device_by_local_rank(env, seen.machine, seen.masks, surplus);
  } catch (const Error& error) {
    compare_devices(rendezvous, error.message(), timeout);
    throw;
  }
  compare_devices(rendezvous, "", timeout);
  env.local_rank = place.local_rank;
  env.local_world_size = place.local_world_size;
  if (found)
    found->assignment.local_rank = place.local_rank;
  return found;
}

}  // namespace muster
