// Pool: what is kept for a task that waits.
#include <algorithm>

#include "muster/tasks/schedule/pool.h"

namespace muster {

bool is_kept(const Hold& hold, int host, int gpu) {
  if (hold.empty()) return false;
  const std::vector<bool>& gpus = hold[static_cast<size_t>(host)].gpus;
  return !gpus.empty() && gpus[static_cast<size_t>(gpu)];
}

int kept_cpus(const Hold& hold, int host) {
  return hold.empty() ? 0 : hold[static_cast<size_t>(host)].cpus;
}

std::optional<Claim> Pool::claim(const TaskNeed& need, const AllowedGpus& allowed, int host,
                                 const Hold& hold) const {
  const PoolHost& mine = hosts_[static_cast<size_t>(host)];
  const int cpus = cpus_for(need, mine);
  if (mine.set_aside || mine.cpus < cpus) return std::nullopt;
  const size_t count = static_cast<size_t>(gpus_of(need));
  std::vector<int> suitable;
  std::vector<int> fitting;
  for (int g = 0; need.gpus > 0 && g < static_cast<int>(mine.gpus.size()); ++g) {
    const PoolGpu& gpu = mine.gpus[static_cast<size_t>(g)];
    if (!suits(need, allowed, host, g) || gpu.memory_bytes - gpu.memory_others < need.memory_bytes ||
        kWholeGpu - gpu.held_units < units_of(need))
      continue;
    suitable.push_back(g);
    if (!is_kept(hold, host, g) && has_room(need, allowed, host, g)) fitting.push_back(g);
  }
  if (suitable.size() < count) return std::nullopt;
  Claim claim{.host = host,
              .cpus = cpus,
              .missing_gpus = static_cast<int>(count - std::min(count, fitting.size())),
              .missing_cpus = std::max(0, cpus - std::max(0, mine.cpus_left - kept_cpus(hold, host)))};
  claim.gpus =
      claim.missing_gpus == 0 ? choose_gpus(need, host, fitting).value_or(std::vector<int>()) : suitable;
  return claim;
}

bool Pool::could_meet(const TaskNeed& need, const AllowedGpus& allowed) const {
  for (int h = 0; h < static_cast<int>(hosts_.size()); ++h) {
    const PoolHost& host = hosts_[static_cast<size_t>(h)];
    if (host.cpus < cpus_for(need, host)) continue;
    int suitable = 0;
    for (int g = 0; g < static_cast<int>(host.gpus.size()); ++g)
      suitable += suits(need, allowed, h, g) ? 1 : 0;
    if (suitable >= gpus_of(need)) return true;
  }
  return false;
}

void Pool::keep(const Claim& claim, Hold& hold) const {
  if (hold.empty()) hold.resize(hosts_.size());
  const auto host = static_cast<size_t>(claim.host);
  hold[host].cpus += claim.cpus;
  hold[host].gpus.resize(hosts_[host].gpus.size());
  for (const int gpu : claim.gpus) hold[host].gpus[static_cast<size_t>(gpu)] = true;
}

bool Pool::has_free_gpu(const Hold& hold) const {
  for (int h = 0; h < static_cast<int>(hosts_.size()); ++h) {
    const std::vector<PoolGpu>& gpus = hosts_[static_cast<size_t>(h)].gpus;
    for (int g = 0; g < static_cast<int>(gpus.size()); ++g) {
      const PoolGpu& gpu = gpus[static_cast<size_t>(g)];
      if (gpu.units_left > gpu.held_units && !is_kept(hold, h, g)) return true;
    }
  }
  return false;
}

bool Pool::has_free_cpu(const Hold& hold) const {
  for (int h = 0; h < static_cast<int>(hosts_.size()); ++h) {
    if (hosts_[static_cast<size_t>(h)].cpus_left > kept_cpus(hold, h)) return true;
  }
  return false;
}

bool Pool::in_the_way(const Allocation& where, const TaskNeed& need, const AllowedGpus& allowed) const {
  if (where.cpus > 0 && cpus_for(need, hosts_[static_cast<size_t>(where.host)]) > 0) return true;
  return need.gpus > 0 && std::any_of(where.gpus.begin(), where.gpus.end(),
                                      [&](int gpu) { return suits(need, allowed, where.host, gpu); });
}

}  // namespace muster
