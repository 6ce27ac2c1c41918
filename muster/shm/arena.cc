#include "muster/shm/arena.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster::shm {

Arena::Arena(std::shared_ptr<SharedMemory> memory, size_t offset, size_t bytes,
             const std::atomic<RankState>* state)
    : state_(std::make_shared<State>()) {
  state_->rank_state = state;
  state_->memory = std::move(memory);
  state_->free[offset] = bytes;
}

std::shared_ptr<std::byte> Arena::allocate(size_t bytes) {
  const size_t size = Layout::pages(std::max<size_t>(bytes, 1));
  const std::lock_guard lock(state_->mutex);
  for (const auto& entry : state_->free) {
    const size_t offset = entry.first, room = entry.second;  // the entry goes
    if (room < size) continue;
    state_->memory->reserve(offset, size);
    state_->free.erase(offset);
    if (room > size) state_->free[offset + size] = room - size;
    return {state_->memory->data() + offset,
            [state = state_, offset, size](std::byte*) { state->give_back(offset, size); }};
  }
  throw Error(ErrorCode::unavailable, cat("shared memory: expected room for ", format_bytes(bytes),
                                          " in this rank's part, got none"));
}

void Arena::State::give_back(size_t offset, size_t bytes) {
  if (rank_state != nullptr && rank_state->load() == RankState::gave_up) return;
  memory->release(offset, bytes);
  const std::lock_guard lock(mutex);
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
