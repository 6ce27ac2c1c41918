// How much memory each rank said it needs. For the memory policy and the planner's check.
#pragma once

#include <algorithm>
#include <cstdint>

#include "muster/placement/request.h"

namespace muster {

// Units: bytes; 0 when nothing was said.
inline uint64_t rank_memory_need(const Request& request, int local_rank) {
  const auto& needs = request.rank_memory_bytes;
  if (needs.empty())
    return 0;
  return needs[std::min<size_t>(local_rank, needs.size() - 1)];
}

}  // namespace muster
