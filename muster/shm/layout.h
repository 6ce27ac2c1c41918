// The layout of the memory that the ranks of a team share. Everything in it is written by one rank
// and read by others, or atomic.
//
//   lines | slots | stages | channels | arenas
//
// Lines, slots, stages and arenas have a part for every rank, channels for every pair of ranks. The
// arenas come last, as they take most of the addresses: what a rank has no addresses for, none
// uses. Lines, slots and stages exist from the start; the pages of a channel or an arena exist from
// their first use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <unistd.h>

#include "muster/base/cache_line.h"
#include "muster/base/divided_up.h"
#include "muster/shm/reduce.h"

namespace muster::shm {

inline constexpr size_t kKiB = 1024;
inline constexpr int kMaxRanks = 256;                       // of a team
inline constexpr size_t kSlotBytes = 8 * kKiB;              // an operation no larger needs no stage
inline constexpr size_t kSlotRoom = kSlotBytes + 4 * kKiB;  // with its call
inline constexpr size_t kComparedDims = 8;                  // of a tensor, by all ranks
inline constexpr size_t kLeastArena = 64 * kKiB * kKiB;
inline constexpr size_t kChannelBytes = 32 * kKiB;  // what a sender may be ahead of its receiver

enum class Kind : uint32_t {
  barrier,
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  leave,  // a barrier of ranks that call nothing after it
};

// A rank says here what it is about to do, and the others compare it with what they do.
struct alignas(kCacheLine) Call {
  uint64_t sequence;
  Kind kind;
  Op op;
  Type type;
  int32_t root;
  uint64_t count;    // elements, of one rank's part where there are parts
  uint64_t offset;   // of the data in this memory; kElsewhere: the data is private to the rank
  uint64_t largest;  // all_to_all: the most bytes that this rank sends to one other
  int64_t num_dims;  // of the tensor, for messages and for comparing; -1: not told
  int64_t dims[kComparedDims];
  int64_t number;  // the caller's own, to compare; -1: none
};
static_assert(sizeof(Call) == 128);
inline constexpr uint64_t kElsewhere = ~uint64_t{0};

enum class RankState : uint32_t {
  absent,
  here,
  left,     // in good order
  gave_up,  // its part of an operation failed: it will not go on
  dead,     // somebody saw its process end
};

// A rank's own words, on cache lines of their own.
struct alignas(kCacheLine) Line {
  std::atomic<uint64_t> arrived;   // steps that the rank has come to
  std::atomic<int32_t> processor;  // on which it last came to one
  // The rank (+ 1) whose next step it sleeps for; 0: it is awake.
  alignas(kCacheLine) std::atomic<uint32_t> waits_for;
  std::atomic<uint32_t> bell;                           // futex: rung for it
  alignas(kCacheLine) std::atomic<uint32_t> mail_bell;  // futex: rung for its mail
  std::atomic<uint32_t> mail_sleeps;
  alignas(kCacheLine) std::atomic<RankState> state;
  std::atomic<int32_t> pid;
  uint64_t pid_namespace;
  std::atomic<uint32_t> needs_connections;  // it sees some other rank's end by a connection alone
  uint64_t cpus[16];                        // a bit for each processor that the rank may run on
  uint64_t arena_bytes;                     // of each arena, that it has addresses for
};

// The progress of the bytes that one rank sends to another.
struct ChannelWords {
  alignas(kCacheLine) std::atomic<uint64_t> written;
  alignas(kCacheLine) std::atomic<uint64_t> read;
};
// A lock of the C++ library's would be one for each process.
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<int32_t>::is_always_lock_free &&
              std::atomic<RankState>::is_always_lock_free);

// The lowest byte is the layout's version.
inline constexpr uint64_t kMagic = 0x31726574'73756d03;

// What the kernel maps and gives back as a whole: 4 KiB, on arm64 up to 64 KiB. All ranks of a team
// have one kernel.
inline size_t page_bytes() {
  static const size_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

// Offsets. The channels and each arena begin at a page.
struct Layout {
  int size = 1;
  size_t stage_bytes = 0;  // one half of a rank's stage
  size_t arena_bytes = 0;

  static size_t pages(size_t bytes) { return rounded_up(bytes, page_bytes()); }
  size_t ranks() const { return size; }

  size_t line(int rank) const { return rank * sizeof(Line); }
  size_t slots() const { return pages(line(size)); }
  // A rank has two: one for calls of odd sequence numbers and one for even, each with its data.
  size_t slot(int rank, uint64_t sequence) const {
    return slots() + (2 * rank + sequence % 2) * kSlotRoom;
  }
  size_t slot_data(int rank, uint64_t sequence) const {
    return slot(rank, sequence) + sizeof(Call);
  }
  size_t stages() const { return slots() + ranks() * 2 * kSlotRoom; }
  // A rank has two halves, each with a part for others to read and one for what it has reduced.
  size_t stage(int rank, uint64_t half) const {
    return stages() + (2 * rank + half % 2) * 2 * stage_bytes;
  }
  size_t channel_words(int from, int to) const {
    return stages() + ranks() * 4 * stage_bytes + pair(from, to) * sizeof(ChannelWords);
  }
  size_t channels() const {
    return pages(channel_words(size - 1, size - 1) + sizeof(ChannelWords));
  }
  size_t channel(int from, int to) const { return channels() + pair(from, to) * kChannelBytes; }
  size_t arenas() const { return pages(channels() + ranks() * ranks() * kChannelBytes); }
  size_t pair(int from, int to) const { return from * ranks() + to; }
  size_t arena(int rank) const { return arenas() + rank * arena_bytes; }
  size_t total() const { return arena(size); }
};

// The layout for a team of `size` ranks on a machine with so much memory, in a process where shared
// memory has so many addresses already. The more it has, the smaller are the arenas, so that
// addresses for another team are always left. Throws: invalid_argument for too many ranks.
Layout layout_for(int size, size_t machine_bytes, size_t mapped_bytes);
Layout layout_for(int size);  // on this machine, in this process

}  // namespace muster::shm
