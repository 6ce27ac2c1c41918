#include "muster/tasks/schedule/claim.h"

#include <algorithm>

namespace muster {

std::optional<Claim> claim_on(const Pool& pool,
                              int host,
                              const TaskNeed& need,
                              const AllowedGpus& allowed,
                              const Reserved& reserved) {
  const PoolHost& mine = pool.hosts()[static_cast<size_t>(host)];
  const int cpus = pool.cpus_for(need, mine);
  if (mine.set_aside || mine.cpus < cpus)
    return std::nullopt;
  const auto count = static_cast<size_t>(gpus_of(need));
  std::vector<int> suitable;
  std::vector<int> fitting;
  for (int g = 0; need.gpus > 0 && g < static_cast<int>(mine.gpus.size()); ++g) {
    const PoolGpu& gpu = mine.gpus[static_cast<size_t>(g)];
    if (!pool.suits(need, allowed, host, g) ||
        gpu.memory_bytes - gpu.memory_others < need.memory_bytes ||
        kWholeGpu - gpu.leased_units < units_of(need))
      continue;
    suitable.push_back(g);
    if (!is_reserved(reserved, host, g) && pool.has_room(need, allowed, host, g))
      fitting.push_back(g);
  }
  if (suitable.size() < count)
    return std::nullopt;
  Claim claim{.host = host,
              .cpus = cpus,
              .missing_gpus = static_cast<int>(count - std::min(count, fitting.size())),
              .missing_cpus =
                  std::max(0, cpus - std::max(0, mine.cpus_left - reserved_cpus(reserved, host)))};
  claim.gpus = claim.missing_gpus == 0
                   ? pool.choose_gpus(need, host, fitting).value_or(std::vector<int>())
                   : suitable;
  return claim;
}

void reserve(const Pool& pool, const Claim& claim, Reserved& reserved) {
  if (reserved.empty())
    reserved.resize(pool.hosts().size());
  const auto host = static_cast<size_t>(claim.host);
  reserved[host].cpus += claim.cpus;
  reserved[host].gpus.resize(pool.hosts()[host].gpus.size());
  for (const int gpu : claim.gpus)
    reserved[host].gpus[static_cast<size_t>(gpu)] = true;
}

bool has_free_gpu(const Pool& pool, const Reserved& reserved) {
  for (int h = 0; h < static_cast<int>(pool.hosts().size()); ++h) {
    const std::vector<PoolGpu>& gpus = pool.hosts()[static_cast<size_t>(h)].gpus;
    for (int g = 0; g < static_cast<int>(gpus.size()); ++g) {
      const PoolGpu& gpu = gpus[static_cast<size_t>(g)];
      if (gpu.units_left > gpu.leased_units && !is_reserved(reserved, h, g))
        return true;
    }
  }
  return false;
}

bool has_free_cpu(const Pool& pool, const Reserved& reserved) {
  for (int h = 0; h < static_cast<int>(pool.hosts().size()); ++h) {
    if (pool.hosts()[static_cast<size_t>(h)].cpus_left > reserved_cpus(reserved, h))
      return true;
  }
  return false;
}

bool in_the_way(const Pool& pool,
                const Allocation& where,
                const TaskNeed& need,
                const AllowedGpus& allowed) {
  if (where.cpus > 0 && pool.cpus_for(need, pool.hosts()[static_cast<size_t>(where.host)]) > 0)
    return true;
  return need.gpus > 0 && std::any_of(where.gpus.begin(), where.gpus.end(), [&](int gpu) {
           return pool.suits(need, allowed, where.host, gpu);
         });
}

}  // namespace muster
