// What rank 0 hands to every other rank of its host over a unix socket: the memory's descriptor,
// and how the memory is laid out. Another program may have sent it, so it is checked before it is
// used.
#pragma once

#include <cstdint>

#include "muster/base/fd.h"
#include "muster/shm/layout.h"

namespace muster::shm {

struct Welcome {
  uint64_t magic = 0;
  int32_t size = 0;
  int32_t reserved = 0;
  uint64_t stage_bytes = 0;
  uint64_t arena_bytes = 0;
};

// False where the receiver has gone.
bool send_memory(int to, Welcome welcome, int memory_fd);

// The memory's descriptor. It is invalid where the sender has gone, or has sent something else.
Fd receive_memory(int from, Welcome& welcome);

// The layout of which rank 0 tells, for `size` ranks. Throws: invalid_argument where it is of other
// ranks or another version, or larger than the memory.
Layout checked_layout(const Welcome& welcome, const Fd& memory, int size);

}  // namespace muster::shm
