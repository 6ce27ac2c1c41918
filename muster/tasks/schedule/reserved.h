// What is reserved of each host for tasks that wait: nobody who comes after them gets it. A value
// that the pool is asked with.
#pragma once

#include <cstddef>
#include <vector>

namespace muster {

struct HostReserved {
  std::vector<bool> gpus = {};  // by the place in PoolHost::gpus
  int cpus = 0;
};

// By host. Empty: nothing.
using Reserved = std::vector<HostReserved>;

inline bool is_reserved(const Reserved& reserved, int host, int gpu) {
  if (reserved.empty())
    return false;
  const std::vector<bool>& gpus = reserved[host].gpus;
  return !gpus.empty() && gpus[gpu];
}

inline int reserved_cpus(const Reserved& reserved, int host) {
  return reserved.empty() ? 0 : reserved[host].cpus;
}

}  // namespace muster
