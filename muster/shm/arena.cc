// A free list of page ranges, first fit; neighbours are joined when a buffer is given back. The
// pages of a buffer exist from allocate() until then. A child that the process forks gets a private
// copy of every buffer that is alive, at the same addresses: else it would write into its parent's.
#include "muster/shm/arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <pthread.h>
#include <sys/mman.h>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster::shm {

namespace {

// A buffer that was given out, which a forked child has to make its own.
struct Buffer {
  std::atomic<bool>* of_parent;
  int fd;
  size_t offset, bytes;
};

// They are never destroyed: buffers may outlive what the program's end destroys.
struct Buffers {
  std::mutex mutex;
  std::map<std::byte*, Buffer> alive;
};
Buffers& buffers() {
  static Buffers* const all = new Buffers;
  return *all;
}

void before_fork() {
  buffers().mutex.lock();
}
void after_fork() {
  buffers().mutex.unlock();
}

// The child has no such memory at all, rather than the parent's, where the kernel refuses.
void in_forked_child() {
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  constexpr int kPlace = MAP_PRIVATE | MAP_FIXED;
  for (const auto& [data, buffer] : buffers().alive) {
    *buffer.of_parent = true;
    const off_t offset = buffer.offset;
    const void* const own = ::mmap(data, buffer.bytes, kAccess, kPlace, buffer.fd, offset);
    if (own == MAP_FAILED)
      ::munmap(data, buffer.bytes);
  }
  buffers().alive.clear();
  buffers().mutex.unlock();
}

// The handlers are registered with the first buffer: a program without any forks as fast as before.
void remember(std::byte* data, const Buffer& buffer) {
  static const int registered = ::pthread_atfork(before_fork, after_fork, in_forked_child);
  if (registered != 0)
    fail_errno("shared memory: pthread_atfork", registered);
  const Lock lock(buffers().mutex);
  buffers().alive.emplace(data, buffer);
}

void forget(std::byte* data) {
  const Lock lock(buffers().mutex);
  buffers().alive.erase(data);
}

}  // namespace

Arena::Arena(std::shared_ptr<SharedMemory> memory,
             size_t offset,
             size_t bytes,
             const std::atomic<RankState>* state)
    : state_(std::make_shared<State>()) {
  state_->rank_state = state;
  state_->memory = std::move(memory);
  state_->free[offset] = bytes;
}

std::shared_ptr<std::byte> Arena::allocate(size_t bytes) {
  const size_t size = Layout::pages(std::max<size_t>(bytes, 1));
  const Lock lock(state_->mutex);
  for (const auto& entry : state_->free) {
    const size_t offset = entry.first, room = entry.second;  // the entry goes
    if (room < size)
      continue;
    state_->memory->reserve(offset, size);
    state_->free.erase(offset);
    if (room > size)
      state_->free[offset + size] = room - size;
    std::byte* const data = state_->memory->data() + offset;
    remember(data,
             {.of_parent = &state_->of_parent,
              .fd = state_->memory->fd(),
              .offset = offset,
              .bytes = size});
    return {data, [state = state_, offset, size](std::byte*) { state->give_back(offset, size); }};
  }
  throw unavailable(
      "shared memory: expected room for ", format_bytes(bytes), " in this rank's part, got none");
}

// A forked child's buffer stays its parent's. After its rank has given up, other ranks may still be
// writing into the buffer, so that it is not given out again.
void Arena::State::give_back(size_t offset, size_t bytes) {
  if (of_parent)
    return;
  forget(memory->data() + offset);
  if (rank_state != nullptr && rank_state->load() == RankState::gave_up)
    return;
  memory->release(offset, bytes);
  const Lock lock(mutex);
  auto next = free.lower_bound(offset);
  if (next != free.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free.erase(next);
  }
  if (next != free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free[offset] = bytes;
}

}  // namespace muster::shm
