// A rank's own part of the shared memory, for buffers that all ranks can reach: what lies here is
// reduced without being copied. A child that the process forks gets a page of its own when it
// writes to one, as with other memory; until then it reads what its parent has there. What it frees
// stays its parent's.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "muster/shm/layout.h"
#include "muster/shm/memory.h"

namespace muster::shm {

class Arena {
 public:
  // The arena is `bytes` of `memory` from `offset` on, both of whole pages; nobody else allocates
  // there. `state`, which may be null, is in that memory: once its rank has given up, others may
  // still be writing, and nothing is given out again.
  Arena(std::shared_ptr<SharedMemory> memory,
        size_t offset,
        size_t bytes,
        const std::atomic<RankState>* state = nullptr);

  // Returns zeroed memory that begins on a page. It is given back when the last copy of the pointer
  // goes, which may be after the arena. Throws: unavailable when there is no memory.
  std::shared_ptr<std::byte> allocate(size_t bytes);

 private:
  // Buffers keep this alive: the mapping, and who uses what of it.
  struct State {
    std::shared_ptr<SharedMemory> memory;
    const std::atomic<RankState>* rank_state;
    std::mutex mutex;
    std::map<size_t, size_t> free;        // offset → bytes; neighbours are joined
    std::atomic<bool> of_parent = false;  // this is a child that was forked since
    void give_back(size_t offset, size_t bytes);
  };
  std::shared_ptr<State> state_;
};

}  // namespace muster::shm
