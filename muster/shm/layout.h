// What lies where in the memory that the ranks of a team share. Everything in it is written by one
// rank and read by others, or atomic.
//
//   Line of every rank | slots of every rank | stages of every rank | channels | arenas of every
//   rank
//
// Up to the stages it exists from the start; a channel's and an arena's pages when they are first
// used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace muster::shm {

inline constexpr size_t kPage = 4096;
inline constexpr int kMaxRanks = 256;                  // of a team
inline constexpr size_t kSlotBytes = size_t{8} << 10;  // an operation no larger needs no stage
inline constexpr size_t kComparedDims = 8;             // of a tensor, by all ranks
inline constexpr size_t kChannelBytes = size_t{32}
                                        << 10;  // what a sender may be ahead of its receiver

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
  leave,  // a barrier, of ranks that call nothing after it
};

// What a rank is about to do, for the others to compare with what they do.
struct alignas(128) Call {
  uint64_t sequence;
  Kind kind;
  uint32_t op;    // ReduceOp
  uint32_t type;  // Type
  int32_t root;
  uint64_t count;    // elements, of one rank's part where there are parts
  uint64_t offset;   // of the data in this memory; kElsewhere: private to the rank
  uint64_t largest;  // all_to_all: the most bytes that this rank sends to one
  int64_t num_dims;  // of the tensor, for messages and for comparing; -1: not told
  int64_t dims[kComparedDims];
  int64_t number;  // that the caller gave it, to compare; -1: none
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
struct alignas(128) Line {
  std::atomic<uint64_t> arrived;                 // steps that the rank has come to
  std::atomic<int32_t> processor;                // where it was when it last came to one
  alignas(128) std::atomic<uint32_t> waits_for;  // the rank (+ 1) whose next step it sleeps for; 0:
                                                 // it is awake
  std::atomic<uint32_t> bell;                    // futex: rung for it
  alignas(128) std::atomic<uint32_t> mail_bell;  // the same for its mail
  std::atomic<uint32_t> mail_sleeps;
  alignas(128) std::atomic<RankState> state;
  std::atomic<int32_t> pid;
  uint64_t pid_namespace;
  std::atomic<uint32_t> needs_connections;  // it sees some other rank's end by a connection alone
  uint64_t cpus[16];                        // that the rank may run on, a bit each
};

// How far the bytes that one rank sends to another have come.
struct ChannelWords {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
};

inline constexpr uint64_t kMagic =
    0x31726574'73756d02;  // and the layout's version, in its lowest byte

// Offsets, all of whole pages.
struct Layout {
  int size = 1;
  size_t stage_bytes = 0;  // one half of a rank's stage
  size_t arena_bytes = 0;

  static constexpr size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  size_t ranks() const { return static_cast<size_t>(size); }

  size_t line(int rank) const { return static_cast<size_t>(rank) * sizeof(Line); }
  size_t slots() const { return pages(line(size)); }
  // Two a rank: the calls of odd and of even sequence numbers, each with its data.
  size_t slot(int rank, uint64_t sequence) const {
    return slots() + (static_cast<size_t>(rank) * 2 + sequence % 2) * (kSlotBytes + kPage);
  }
  size_t slot_data(int rank, uint64_t sequence) const {
    return slot(rank, sequence) + sizeof(Call);
  }
  size_t stages() const { return slots() + ranks() * 2 * (kSlotBytes + kPage); }
  // Two halves a rank, each with a part for others to read and one for what this rank has reduced.
  size_t stage(int rank, uint64_t half) const {
    return stages() + (static_cast<size_t>(rank) * 2 + half % 2) * 2 * stage_bytes;
  }
  size_t channel_words(int from, int to) const {
    return stages() + ranks() * 4 * stage_bytes + pair(from, to) * sizeof(ChannelWords);
  }
  size_t channels() const {
    return pages(channel_words(size - 1, size - 1) + sizeof(ChannelWords));
  }
  size_t channel(int from, int to) const { return channels() + pair(from, to) * kChannelBytes; }
  size_t arenas() const { return channels() + ranks() * ranks() * kChannelBytes; }
  size_t pair(int from, int to) const {
    return static_cast<size_t>(from) * ranks() + static_cast<size_t>(to);
  }
  size_t arena(int rank) const { return arenas() + static_cast<size_t>(rank) * arena_bytes; }
  size_t total() const { return arena(size); }
};

// Sizes for a team of `size` ranks of a machine with so much memory, in a process where such memory
// has so many addresses already: the more it has, the smaller the arenas, so that addresses for
// another team are always left. Throws: invalid_argument for too many ranks.
Layout layout_for(int size, size_t machine_bytes, size_t mapped_bytes);
Layout layout_for(int size);  // on this machine, in this process

}  // namespace muster::shm
