// A claim is reckoned as if every task of the run had ended: what other jobs and programs have of a
// GPU stays theirs, and all else will be free one day.
#include "muster/tasks/schedule/claim.h"

#include <algorithm>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"

namespace muster {

namespace {

// The host's GPUs that will do once no task of the run has any of them.
Ints suitable_gpus(const DevicePool& pool,
                   int host,
                   const TaskNeed& need,
                   const AllowedGpus& allowed) {
  Ints suitable;
  if (need.gpus <= 0)
    return suitable;
  const PoolGpus& gpus = pool.hosts()[host].gpus;
  for (const int g : int_indices_of(gpus)) {
    const bool has_memory = gpus[g].memory_bytes - gpus[g].memory_others >= need.memory_bytes;
    const bool has_units = kWholeGpu - gpus[g].leased_units >= units_of(need);
    if (has_memory && has_units && pool.suits(need, allowed, host, g))
      suitable.push_back(g);
  }
  return suitable;
}

}  // namespace

// The claim has the GPUs that the need would get, if there are enough, else all that will do, since
// nobody knows which is freed first.
std::optional<Claim> claim_on(const DevicePool& pool,
                              int host,
                              const TaskNeed& need,
                              const AllowedGpus& allowed,
                              const Reserved& reserved) {
  const PoolHost& mine = pool.hosts()[host];
  const int cpus = pool.cpus_for(need, mine);
  if (mine.set_aside || mine.cpus < cpus)
    return std::nullopt;
  const int count = gpus_of(need);
  Ints suitable = suitable_gpus(pool, host, need, allowed);
  if (std::ssize(suitable) < count)
    return std::nullopt;
  Ints fitting = suitable;
  std::erase_if(fitting, [&](int gpu) {
    return is_reserved(reserved, host, gpu) || !pool.has_room(need, allowed, host, gpu);
  });
  const int free_cpus = std::max(0, mine.cpus_left - reserved_cpus(reserved, host));
  Claim claim{.host = host, .cpus = cpus, .missing_cpus = std::max(0, cpus - free_cpus)};
  if (auto chosen = pool.choose_gpus(need, host, fitting)) {
    claim.gpus = std::move(*chosen);
  } else {
    claim.gpus = std::move(suitable);
    claim.missing_gpus = count - static_cast<int>(fitting.size());
  }
  return claim;
}

// CPUs add up, while a GPU is reserved or not.
void reserve(const DevicePool& pool, const Claim& claim, Reserved& reserved) {
  if (reserved.empty())
    reserved.resize(pool.hosts().size());
  HostReserved& mine = reserved[claim.host];
  mine.cpus += claim.cpus;
  mine.gpus.resize(pool.hosts()[claim.host].gpus.size());
  for (const int gpu : claim.gpus)
    mine.gpus[gpu] = true;
}

bool has_free_gpu(const DevicePool& pool, const Reserved& reserved) {
  for (const int h : int_indices_of(pool.hosts())) {
    const PoolGpus& gpus = pool.hosts()[h].gpus;
    for (const int g : int_indices_of(gpus)) {
      if (gpus[g].units_left > gpus[g].leased_units && !is_reserved(reserved, h, g))
        return true;
    }
  }
  return false;
}

bool has_free_cpu(const DevicePool& pool, const Reserved& reserved) {
  return any_of(int_indices_of(pool.hosts()),
                [&](int h) { return pool.hosts()[h].cpus_left > reserved_cpus(reserved, h); });
}

bool in_the_way(const DevicePool& pool,
                const Allocation& where,
                const TaskNeed& need,
                const AllowedGpus& allowed) {
  if (where.cpus > 0 && pool.cpus_for(need, pool.hosts()[where.host]) > 0)
    return true;
  return need.gpus > 0 &&
         any_of(where.gpus, [&](int gpu) { return pool.suits(need, allowed, where.host, gpu); });
}

}  // namespace muster
